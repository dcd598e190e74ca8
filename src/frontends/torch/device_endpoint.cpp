#include "device_endpoint.hpp"

#include <isthmus/allreduce_rmsnorm.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace isthmus::torch_backend {
namespace {

// Limit of the counter cache of a communicator. Without it, sizes that never repeat would exhaust memory.
constexpr std::size_t max_cached_signatures = 4096;

constexpr const char* unknown_backend = "unknown";

// Returns the size in bytes of this rank's contribution, whichever buffer contains it.
std::uint64_t own_bytes(const isthmus_operation& operation) {
  return operation.count * isthmus_datatype_bytes(operation.datatype);
}

isthmus_status start_operation(isthmus_communicator communicator, const isthmus_operation& operation) {
  if (operation.rmsnorm == nullptr) return isthmus_enqueue(communicator, &operation);
  const isthmus_rmsnorm& norm = *operation.rmsnorm;
  isthmus_allreduce_rmsnorm_arguments arguments{};
  arguments.struct_bytes = sizeof arguments;
  arguments.tokens = norm.hidden == 0 ? 0 : operation.count / norm.hidden;
  arguments.hidden = norm.hidden;
  arguments.datatype = operation.datatype;
  arguments.output = norm.output;
  arguments.eps = static_cast<double>(norm.eps);
  arguments.input = operation.send_buf;
  arguments.residual = norm.residual;
  arguments.weight = norm.weight;
  arguments.residual_out = operation.recv_buf;
  arguments.normalized = norm.normalized;
  arguments.scale = norm.scale;
  arguments.scales = norm.scales;
  arguments.stream = operation.stream;
  arguments.round_before_weight = norm.round_before_weight;
  return isthmus_allreduce_rmsnorm(communicator, &arguments);
}

}  // namespace

std::size_t device_endpoint::call_signature_hash::operator()(const call_signature& signature) const noexcept {
  std::size_t hash = signature.count;
  for (const int part : {static_cast<int>(signature.collective), static_cast<int>(signature.datatype),
                         static_cast<int>(signature.op), signature.root, signature.has_rmsnorm ? 1 : 0,
                         signature.has_product ? 1 : 0})
    hash = hash * 0x9e3779b97f4a7c15u + static_cast<std::size_t>(part);
  return hash ^ hash >> 29;
}

isthmus_communicator device_endpoint::open() {
  const std::lock_guard lock(m_mutex);
  return open_locked();
}

isthmus_communicator device_endpoint::open_locked() {
  {
    const std::lock_guard lock(m_handle_mutex);
    if (m_is_closed)
      C10_THROW_ERROR(DistBackendError,
                      c10::str("isthmus: process group ", m_settings.group, " was shut down"));
    if (m_communicator != nullptr) return m_communicator;
    if (m_is_aborted)
      C10_THROW_ERROR(DistBackendError, c10::str("isthmus: process group ", m_settings.group, " was aborted"));
    m_rendezvous =
        std::make_shared<store_rendezvous>(m_store, m_settings.scope, m_settings.has_nonblocking_store);
  }
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.device = m_settings.device;
  options.timeout_s = m_settings.timeout_s;
  options.collectives = m_settings.collectives;
  isthmus_communicator created = nullptr;
  check(isthmus_communicator_create_store(m_rendezvous->table(), m_settings.rank, m_settings.size, &options,
                                          &created));
  const std::lock_guard lock(m_handle_mutex);
  m_communicator = created;
  if (m_is_aborted) isthmus_communicator_abort(created);  // aborted during creation
  return created;
}

void device_endpoint::launch(const std::vector<owned_operation>& operations, isthmus_stream stream) {
  if (operations.empty()) return;
  const std::lock_guard lock(m_mutex);
  const isthmus_communicator communicator = open_locked();
  const bool is_grouped = operations.size() > 1;
  const auto start = std::chrono::steady_clock::now();
  if (is_grouped) check(isthmus_group_start());
  std::string error;
  for (const owned_operation& each : operations) {
    if (start_call(communicator, each, stream) == ISTHMUS_SUCCESS) continue;
    error = describe_last_error();
    break;
  }
  if (is_grouped) {  // always ends the group; after an error, no operation of the group starts
    const isthmus_status status = isthmus_group_end();
    if (error.empty()) check(status);
  }
  if (!error.empty()) C10_THROW_ERROR(DistBackendError, error);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  for (const owned_operation& each : operations)  // the operations of a group share its time
    if (each.planned)
      each.planned->plan->counter().add(each.reported_bytes.value_or(0), elapsed.count());
    else if (each.is_reported)
      report_locked(each.operation_for(stream), each.reported_bytes, elapsed / operations.size());
}

isthmus_status device_endpoint::start_call(isthmus_communicator communicator, const owned_operation& operation,
                                           isthmus_stream stream) const {
  if (!operation.planned) return start_operation(communicator, operation.operation_for(stream));
  return operation.planned->plan->run(operation.planned->arguments, stream, is_capturing(stream));
}

std::shared_ptr<product_plan> device_endpoint::find_plan(const product_shape& shape) {
  const std::lock_guard lock(m_mutex);
  return m_plans.find(shape);
}

std::shared_ptr<product_plan> device_endpoint::create_plan(const product_shape& shape) {
  const std::lock_guard lock(m_mutex);
  const isthmus_communicator communicator = open_locked();
  if (auto plan = m_plans.find(shape)) return plan;
  return m_plans.create(shape, communicator, m_settings.group, m_settings.device_name);
}

void device_endpoint::report(const owned_operation& operation, std::chrono::nanoseconds elapsed) {
  const std::lock_guard lock(m_mutex);
  report_locked(operation.operation_for(nullptr), operation.reported_bytes, elapsed);
}

void device_endpoint::report_locked(const isthmus_operation& operation,
                                    const std::optional<std::uint64_t>& bytes,
                                    std::chrono::nanoseconds elapsed) {
  counter_for(operation).add(bytes.value_or(own_bytes(operation)), elapsed.count());
}

bool device_endpoint::is_capturing(isthmus_stream stream) const {
  int is_capturing_now = 0;
  check(isthmus_stream_is_capturing(m_settings.device, stream, &is_capturing_now));
  return is_capturing_now != 0;
}

void device_endpoint::check_health() {
  const std::lock_guard lock(m_mutex);
  if (m_communicator != nullptr) check(isthmus_communicator_async_error(m_communicator));
}

void* device_endpoint::allocate(std::uint64_t bytes) {
  const std::lock_guard lock(m_mutex);
  void* block = nullptr;
  check(isthmus_memory_allocate_symmetric(open_locked(), bytes, &block));
  const std::lock_guard handle_lock(m_handle_mutex);
  ++m_block_count;
  return block;
}

void device_endpoint::free(void* block) noexcept {
  if (is_inherited()) return;
  const std::lock_guard lock(m_mutex);
  const std::lock_guard handle_lock(m_handle_mutex);
  if (isthmus_memory_free_symmetric(m_communicator, block) != ISTHMUS_SUCCESS)
    TORCH_WARN("isthmus: freeing symmetric memory of process group ", m_settings.group,
               " failed: ", describe_last_error());
  if (--m_block_count == 0 && m_is_closed) release();
}

shrink_result device_endpoint::shrink(double wait_s) {
  shrink_result result;
  {
    const std::lock_guard lock(m_handle_mutex);
    if (m_communicator == nullptr)
      C10_THROW_ERROR(DistBackendError,
                      c10::str("isthmus: shrink: process group ", m_settings.group, " has no communicator on ",
                               m_settings.device_name, ", because no call has used one"));
    m_captured->has_ended = true;
    check(isthmus_communicator_abort(m_communicator));  // otherwise a blocked call would hold m_mutex
    result.store = m_rendezvous;
    // If a timeout or the program aborts the calls before or during the agreement, the waits for its keys must
    // not be cancelled.
    m_is_store_shared = true;
    m_rendezvous->resume();
  }
  const std::lock_guard lock(m_mutex);
  check(isthmus_communicator_shrink(m_communicator, wait_s, &result.communicator));
  int size = 0;
  check(isthmus_communicator_size(result.communicator, &size));
  result.ranks.resize(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank)
    check(isthmus_communicator_parent_rank(result.communicator, rank,
                                           &result.ranks[static_cast<std::size_t>(rank)]));
  return result;
}

void device_endpoint::abort() noexcept {
  if (is_inherited()) return;
  const std::lock_guard lock(m_handle_mutex);
  m_is_aborted = true;
  m_captured->has_ended = true;
  if (m_rendezvous && !m_is_store_shared) m_rendezvous->cancel();
  if (m_communicator != nullptr) isthmus_communicator_abort(m_communicator);
}

void device_endpoint::close() noexcept {
  if (is_inherited()) return;
  const std::lock_guard lock(m_mutex);
  const std::lock_guard handle_lock(m_handle_mutex);
  m_is_closed = true;
  m_captured->has_ended = true;
  if (m_block_count == 0) release();
}

void device_endpoint::release() noexcept {
  m_plans.clear();
  if (m_communicator != nullptr && isthmus_communicator_destroy(m_communicator) != ISTHMUS_SUCCESS)
    TORCH_WARN("isthmus: closing process group ", m_settings.group, " failed: ", describe_last_error());
  m_communicator = nullptr;
  m_rendezvous.reset();
}

device_endpoint::call_signature device_endpoint::signature_of(const isthmus_operation& operation) {
  return {
      operation.collective,         operation.datatype,          operation.op, operation.root, operation.count,
      operation.rmsnorm != nullptr, operation.product != nullptr};
}

bool device_endpoint::is_supported(const owned_operation& operation) {
  const std::lock_guard lock(m_mutex);
  open_locked();
  const isthmus_operation query = operation.operation_for(nullptr);
  const call_signature signature = signature_of(query);
  const auto cached = m_supported.find(signature);
  if (cached != m_supported.end()) return cached->second;
  if (m_supported.size() >= max_cached_signatures) m_supported.clear();
  return m_supported[signature] = explain_path(query).backend != unknown_backend;
}

call_counter& device_endpoint::counter_for(const isthmus_operation& operation) {
  const call_signature signature = signature_of(operation);
  const auto cached = m_counters.find(signature);
  if (cached != m_counters.end()) return *cached->second;
  if (m_counters.size() >= max_cached_signatures) m_counters.clear();
  call_counter& counter = path_report::instance().counter_for(explain_path(operation));
  m_counters.emplace(signature, &counter);
  return counter;
}

// explain() runs the same selection as the call, so it returns the path that the call used.
call_path device_endpoint::explain_path(isthmus_operation operation) {
  call_path path{m_settings.group, m_settings.device_name,
                 operation.rmsnorm != nullptr   ? "allreduce_rmsnorm"
                 : operation.product != nullptr ? "matmul_allreduce"
                                                : isthmus_collective_name(operation.collective),
                 unknown_backend, ""};
  if (m_settings.device.platform == ISTHMUS_PLATFORM_HOST)
    operation.rmsnorm = nullptr;  // the library normalizes the result of an allreduce
  std::vector<char> text(1u << 14);
  std::size_t required_bytes = 0;
  isthmus_status status =
      isthmus_communicator_explain(m_communicator, &operation, text.data(), text.size(), &required_bytes);
  if (status == ISTHMUS_SUCCESS && required_bytes > text.size()) {
    text.resize(required_bytes);
    status =
        isthmus_communicator_explain(m_communicator, &operation, text.data(), text.size(), &required_bytes);
  }
  if (status != ISTHMUS_SUCCESS) {
    path.reason = describe_last_error();
    return path;
  }
  const auto explanation = nlohmann::json::parse(text.data());
  const std::string algorithm = explanation.value("algorithm", nlohmann::json("")).is_string()
                                    ? explanation["algorithm"].get<std::string>()
                                    : std::string();
  if (explanation["backend"].is_string()) path.backend = explanation["backend"].get<std::string>();
  if (!algorithm.empty()) path.backend += ":" + algorithm;
  path.reason = explanation.value("reason", "");
  return path;
}

}  // namespace isthmus::torch_backend
