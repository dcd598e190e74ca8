#include "frontends/ggml/device_group.hpp"

#include <cstdlib>
#include <exception>
#include <string_view>

#include "frontends/ggml/log.hpp"
#include "frontends/ggml/runtime.hpp"

namespace isthmus::ggml {
namespace {

constexpr const char* init_name = "ggml_backend_comm_init";
constexpr const char* free_name = "ggml_backend_comm_free";
constexpr const char* allreduce_name = "ggml_backend_comm_allreduce_tensor";

isthmus_wire requested_wire() {
  const char* text = environment_variable("ISTHMUS_GGML_WIRE");
  const std::string_view wire = text != nullptr ? text : "";
  if (wire == "exact") return ISTHMUS_WIRE_EXACT;
  if (wire == "bfloat16") return ISTHMUS_WIRE_BFLOAT16;
  if (!wire.empty() && wire != "rule")
    warn_once("ISTHMUS_GGML_WIRE=" + std::string(wire) + " is unknown; use rule, exact or bfloat16");
  return ISTHMUS_WIRE_AUTO;
}

std::string error_text(const core_functions& core) {
  isthmus_error_info info{};
  core.last_error(&info);
  return std::string(info.message) + (info.hint[0] != '\0' ? "; " + std::string(info.hint) : "");
}

// ggml calls these through C function pointers, so they must not throw.
void* init(ggml_backend** backends, std::size_t n) noexcept try {
  return device_group::create(backends, n).release();
} catch (const std::exception& failure) {
  warn_once(std::string("init: ") + failure.what());
  return nullptr;
}
void free(void* comm) noexcept { delete static_cast<device_group*>(comm); }
bool allreduce(void* comm, ggml_tensor** tensors) noexcept try {
  return static_cast<device_group*>(comm)->allreduce(tensors);
} catch (const std::exception& failure) {  // only warnings allocate, and only before anything is enqueued
  warn_once(failure.what());
  return false;
}

}  // namespace

void* find_comm_function(const char* name) {
  const std::string_view requested = name != nullptr ? name : "";
  if (requested == init_name) return reinterpret_cast<void*>(&init);
  if (requested == free_name) return reinterpret_cast<void*>(&free);
  if (requested == allreduce_name) return reinterpret_cast<void*>(&allreduce);
  return nullptr;
}

device_group::device_group(const ggml_library& ggml, ggml_backend** backends, std::size_t n)
    : m_ggml(ggml), m_backends(backends, backends + n), m_pointers(n) {}

std::unique_ptr<device_group> device_group::create(ggml_backend** backends, std::size_t n) {
  const ggml_library* ggml = ggml_library::current();
  if (ggml == nullptr || backends == nullptr || n == 0) return nullptr;
  std::unique_ptr<device_group> group(new device_group(*ggml, backends, n));
  const stream_plan plan = group->make_plan();
  const std::string reason = plan.reason.empty() ? group->open(plan) : plan.reason;
  if (reason.empty()) return group;
  const bool has_native_allreduce = group->open_native();
  warn_once("not used: " + reason + "; " +
            (has_native_allreduce ? "ggml's own allreduce is used instead"
                                  : "ggml copies and adds step by step instead"));
  return has_native_allreduce ? std::move(group) : nullptr;
}

device_group::stream_plan device_group::make_plan() const {
  ggml_device* first = m_ggml.get_device(m_backends[0]);
  const std::string kind = m_ggml.registry_name(m_ggml.registry_of(first));
  bool is_all_host = true;
  for (ggml_backend* backend : m_backends) {
    ggml_device* device = m_ggml.get_device(backend);
    if (m_ggml.registry_of(device) != m_ggml.registry_of(first))
      return {.reason = std::string("devices ") + m_ggml.device_name(first) + " and " +
                        m_ggml.device_name(device) + " belong to different ggml backends"};
    is_all_host = is_all_host && m_ggml.device_type(device) == ggml_library::cpu_device;
  }
  if (is_all_host)
    return {.devices = std::vector<isthmus_device>(m_backends.size(), {ISTHMUS_PLATFORM_HOST, 0}),
            .streams = std::vector<isthmus_stream>(m_backends.size(), nullptr)};
  if (kind == "CUDA") return plan_streams(stream_kind::cuda);
  if (kind == "SYCL") return plan_streams(stream_kind::sycl);
  return {.reason = "ggml backend " + kind + " is not supported; use CUDA, SYCL or a backend in host memory"};
}

device_group::stream_plan device_group::plan_streams(stream_kind kind) const {
  stream_plan plan;
  const void* runtime = nullptr;
  for (ggml_backend* backend : m_backends) {
    const stream_lookup lookup = find_stream(m_ggml, backend, kind);
    const std::string name = m_ggml.device_name(m_ggml.get_device(backend));
    if (!lookup.reason.empty()) return {.reason = "the stream of " + name + " is unknown: " + lookup.reason};
    // A SYCL engine uses only the queues. The platform only selects the rules that apply.
    isthmus_device device{ISTHMUS_PLATFORM_LEVEL_ZERO, static_cast<int>(plan.devices.size())};
    if (kind == stream_kind::cuda) device = {ISTHMUS_PLATFORM_CUDA, cuda_ordinal_of(lookup.stream)};
    if (device.ordinal < 0) return {.reason = "the CUDA driver does not report the device of " + name};
    plan.devices.push_back(device);
    plan.streams.push_back(lookup.stream);
    runtime = lookup.function;
  }
  if (kind == stream_kind::sycl) plan.engine = open_sycl_engine(runtime, plan.reason);
  return plan;
}

// Returns "" or the reason for the failure.
std::string device_group::open(const stream_plan& plan) {
  std::string reason;
  m_core = open_core(reason);
  if (m_core == nullptr) return reason;
  isthmus_tensor_parallel_options options{};
  options.struct_bytes = sizeof options;
  options.wire = requested_wire();
  options.engine = plan.engine;
  const int n = static_cast<int>(m_backends.size());
  if (m_core->create(n, plan.devices.data(), plan.streams.data(), &options, &m_handle) != ISTHMUS_SUCCESS)
    return error_text(*m_core);
  m_is_host = plan.devices[0].platform == ISTHMUS_PLATFORM_HOST;
  std::string names;
  for (ggml_backend* backend : m_backends)
    names += (names.empty() ? "" : ", ") + std::string(m_ggml.device_name(m_ggml.get_device(backend)));
  log_info("Isthmus sums over " + names);
  return "";
}

bool device_group::open_native() {
  ggml_registry* registry = m_ggml.registry_of(m_ggml.get_device(m_backends[0]));
  const auto make = reinterpret_cast<comm_init*>(m_ggml.get_proc_address(registry, init_name));
  m_native.free = reinterpret_cast<comm_free*>(m_ggml.get_proc_address(registry, free_name));
  m_native.allreduce = reinterpret_cast<comm_allreduce*>(m_ggml.get_proc_address(registry, allreduce_name));
  if (make == nullptr || m_native.free == nullptr || m_native.allreduce == nullptr) return false;
  m_native.comm = make(m_backends.data(), m_backends.size());
  return m_native.comm != nullptr;
}

device_group::~device_group() {
  if (m_handle != nullptr) {
    m_core->destroy(m_handle);
    log_debug(std::to_string(m_calls) + " allreduces of " + std::to_string(m_elements) + " elements, " +
              std::to_string(m_refused_calls) + " refused");
  }
  if (m_native.comm != nullptr) m_native.free(m_native.comm);
}

// Reads the tensors into the members. Returns "" or the reason why they cannot be summed.
const char* device_group::read_tensors(ggml_tensor** tensors) {
  const auto datatype = m_ggml.layout().datatype(tensors[0]);
  if (!datatype) return "the tensors are not f32, f16 or bf16";
  m_datatype = *datatype;
  m_count = static_cast<std::uint64_t>(m_ggml.count_elements(tensors[0]));
  m_active = 0;
  for (std::size_t i = 0; i < m_backends.size(); ++i) {
    if (m_ggml.layout().datatype(tensors[i]) != datatype) return "the tensors have different types";
    if (static_cast<std::uint64_t>(m_ggml.count_elements(tensors[i])) != m_count)
      return "the tensors have different sizes";
    if (!m_ggml.is_contiguous(tensors[i])) return "a tensor is not contiguous";
    m_pointers[i] = m_ggml.data(tensors[i]);
    if (m_ggml.layout().is_computed(tensors[i])) m_active |= std::uint64_t{1} << i;
  }
  return "";
}

bool device_group::use_ggml_allreduce(const char* reason) {
  ++m_refused_calls;
  warn_once(std::string("ggml computes a sum itself: ") + reason);
  return false;
}

bool device_group::allreduce(ggml_tensor** tensors) {
  if (m_native.comm != nullptr) return m_native.allreduce(m_native.comm, tensors);
  if (const char* reason = read_tensors(tensors); *reason != '\0') return use_ggml_allreduce(reason);
  if (m_count == 0) return true;  // checked first, because empty tensors may have no memory
  if (m_is_host)
    for (ggml_backend* backend : m_backends) m_ggml.synchronize(backend);
  if (m_core->allreduce(m_handle, m_pointers.data(), m_count, m_datatype, m_active) != ISTHMUS_SUCCESS)
    return use_ggml_allreduce(error_text(*m_core).c_str());
  ++m_calls;
  m_elements += m_count;
  return true;
}

}  // namespace isthmus::ggml
