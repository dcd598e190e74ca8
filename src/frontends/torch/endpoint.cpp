#include "endpoint.hpp"

#include <isthmus/memory.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "status.hpp"

namespace isthmus::torch_backend {
namespace {

// Kinds of calls that one communicator remembers. Sizes that never repeat would fill memory.
constexpr std::size_t remembered_kinds = 4096;

// Bytes of this rank's part, whichever buffer holds it.
std::uint64_t own_bytes(const isthmus_operation& operation) {
  return operation.count * isthmus_datatype_bytes(operation.datatype);
}

}  // namespace

std::size_t endpoint::call_kind_hash::operator()(const call_kind& kind) const noexcept {
  std::size_t mixed = kind.count;
  for (const int part : {static_cast<int>(kind.collective), static_cast<int>(kind.datatype),
                         static_cast<int>(kind.op), kind.root})
    mixed = mixed * 0x9e3779b97f4a7c15u + static_cast<std::size_t>(part);
  return mixed ^ mixed >> 29;
}

isthmus_communicator endpoint::open() {
  const std::lock_guard lock(m_mutex);
  return open_locked();
}

isthmus_communicator endpoint::open_locked() {
  {
    const std::lock_guard lock(m_handle_mutex);
    if (m_closed)
      C10_THROW_ERROR(DistBackendError,
                      c10::str("isthmus: process group ", m_settings.group, " was shut down"));
    if (m_communicator != nullptr) return m_communicator;
    if (m_aborted)
      C10_THROW_ERROR(DistBackendError, c10::str("isthmus: process group ", m_settings.group, " was aborted"));
    m_rendezvous = std::make_shared<rendezvous>(m_store, m_settings.scope);
  }
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.device = m_settings.device;
  options.timeout_s = m_settings.timeout_s;
  options.collectives = m_settings.collectives;
  isthmus_communicator made = nullptr;
  check(isthmus_communicator_create_store(m_rendezvous->table(), m_settings.rank, m_settings.size, &options,
                                          &made));
  const std::lock_guard lock(m_handle_mutex);
  m_communicator = made;
  if (m_aborted) isthmus_communicator_abort(made);  // meanwhile
  return made;
}

void endpoint::launch(const std::vector<owned_operation>& operations, isthmus_stream stream) {
  if (operations.empty()) return;
  const std::lock_guard lock(m_mutex);
  const isthmus_communicator communicator = open_locked();
  const bool grouped = operations.size() > 1;
  const auto begun = std::chrono::steady_clock::now();
  if (grouped) check(isthmus_group_start());
  std::string refused;
  for (const owned_operation& each : operations) {
    const isthmus_operation operation = each.operation_for(stream);
    if (isthmus_enqueue(communicator, &operation) == ISTHMUS_SUCCESS) continue;
    refused = describe_last_error();
    break;
  }
  if (grouped) {  // has to be closed in any case; after a refusal it starts nothing
    const isthmus_status status = isthmus_group_end();
    if (refused.empty()) check(status);
  }
  if (!refused.empty()) C10_THROW_ERROR(DistBackendError, refused);
  const auto took = std::chrono::steady_clock::now() - begun;
  for (const owned_operation& each : operations) {  // those of a group share its time
    const isthmus_operation operation = each.operation_for(stream);
    tally_of(operation).add(own_bytes(operation), took / operations.size());
  }
}

bool endpoint::is_capturing(isthmus_stream stream) const {
  int capturing = 0;
  check(isthmus_stream_is_capturing(m_settings.device, stream, &capturing));
  return capturing != 0;
}

void endpoint::check_health() {
  const std::lock_guard lock(m_mutex);
  if (m_communicator != nullptr) check(isthmus_communicator_async_error(m_communicator));
}

void* endpoint::allocate(std::uint64_t bytes) {
  const std::lock_guard lock(m_mutex);
  void* block = nullptr;
  check(isthmus_memory_allocate_symmetric(open_locked(), bytes, &block));
  const std::lock_guard handle_lock(m_handle_mutex);
  ++m_blocks;
  return block;
}

void endpoint::free(void* block) noexcept {
  const std::lock_guard lock(m_mutex);
  const std::lock_guard handle_lock(m_handle_mutex);
  if (isthmus_memory_free(m_communicator, block) != ISTHMUS_SUCCESS)
    TORCH_WARN("in process group ", m_settings.group, ": ", describe_last_error());
  if (--m_blocks == 0 && m_closed) release();
}

survivors endpoint::shrink(double wait_s) {
  survivors made;
  {
    const std::lock_guard lock(m_handle_mutex);
    if (m_communicator == nullptr)
      C10_THROW_ERROR(DistBackendError,
                      c10::str("isthmus: process group ", m_settings.group, " has no communicator on ",
                               m_settings.device_name, " that could shrink: no call has used one"));
    check(isthmus_communicator_abort(m_communicator));  // a call that waits would keep the mutex
    made.store = m_rendezvous;
    // Who aborted the calls, a timeout or the program, did not mean the keys of the agreement; nor does who
    // aborts them late.
    m_store_is_handed_on = true;
    m_rendezvous->resume();
  }
  const std::lock_guard lock(m_mutex);
  check(isthmus_communicator_shrink(m_communicator, wait_s, &made.communicator));
  int size = 0;
  check(isthmus_communicator_size(made.communicator, &size));
  made.ranks.resize(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank)
    check(
        isthmus_communicator_parent_rank(made.communicator, rank, &made.ranks[static_cast<std::size_t>(rank)]));
  return made;
}

void endpoint::abort() noexcept {
  const std::lock_guard lock(m_handle_mutex);
  m_aborted = true;
  if (m_rendezvous && !m_store_is_handed_on) m_rendezvous->cancel();
  if (m_communicator != nullptr) isthmus_communicator_abort(m_communicator);
}

void endpoint::close() noexcept {
  const std::lock_guard lock(m_mutex);
  const std::lock_guard handle_lock(m_handle_mutex);
  m_closed = true;
  if (m_blocks == 0) release();
}

void endpoint::release() noexcept {
  if (m_communicator != nullptr && isthmus_communicator_destroy(m_communicator) != ISTHMUS_SUCCESS)
    TORCH_WARN("while closing process group ", m_settings.group, ": ", describe_last_error());
  m_communicator = nullptr;
  m_rendezvous.reset();
}

tally& endpoint::tally_of(const isthmus_operation& operation) {
  const call_kind kind{operation.collective, operation.datatype, operation.op, operation.root, operation.count};
  const auto known = m_tallies.find(kind);
  if (known != m_tallies.end()) return *known->second;
  if (m_tallies.size() >= remembered_kinds) m_tallies.clear();
  tally& found = path_report::instance().of(path_of(operation));
  m_tallies.emplace(kind, &found);
  return found;
}

// explain runs the selector that the call ran, so this is what the call took.
path endpoint::path_of(const isthmus_operation& operation) {
  path taken{m_settings.group, m_settings.device_name, isthmus_collective_name(operation.collective), "unknown",
             ""};
  std::vector<char> text(1u << 14);
  std::size_t required_bytes = 0;
  isthmus_status status =
      isthmus_communicator_explain(m_communicator, &operation, text.data(), text.size(), &required_bytes);
  if (status == ISTHMUS_SUCCESS && required_bytes > text.size()) {
    text.resize(required_bytes);
    status = isthmus_communicator_explain(m_communicator, &operation, text.data(), text.size(), &required_bytes);
  }
  if (status != ISTHMUS_SUCCESS) {
    taken.reason = describe_last_error();
    return taken;
  }
  const auto explained = nlohmann::json::parse(text.data());
  const std::string algorithm = explained.value("algorithm", nlohmann::json("")).is_string()
                                    ? explained["algorithm"].get<std::string>()
                                    : std::string();
  if (explained["backend"].is_string()) taken.backend = explained["backend"].get<std::string>();
  if (!algorithm.empty()) taken.backend += ":" + algorithm;
  taken.reason = explained.value("reason", "");
  return taken;
}

}  // namespace isthmus::torch_backend
