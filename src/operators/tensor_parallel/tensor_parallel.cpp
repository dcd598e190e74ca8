#include "operators/tensor_parallel/tensor_parallel.hpp"

#include <fmt/ranges.h>
#include <isthmus/isthmus.h>

#include <memory>
#include <vector>

#include "base/dynamic_library.hpp"
#include "base/error.hpp"
#include "core/plugin.hpp"

struct isthmus_tensor_parallel_impl {
  int n;
  isthmus_platform platform;
  const isthmus_tensor_parallel_engine* engine;
  void* state;
  isthmus::tensor_parallel::tuning_table tuning;
};

namespace isthmus::tensor_parallel {
namespace {

const isthmus_tensor_parallel_engine* lookup_engine(const std::string& path) {
  const dynamic_library plugin = dynamic_library::find_loaded(path.c_str());  // load_backends keeps it loaded
  if (!plugin) return nullptr;
  using entry_point = const isthmus_tensor_parallel_engine* (*)();
  const auto entry = reinterpret_cast<entry_point>(plugin.symbol(ISTHMUS_TENSOR_PARALLEL_ENGINE_SYMBOL));
  return entry == nullptr ? nullptr : entry();
}

// Returns "", or the reason why the engine cannot be used.
std::string check_engine(const isthmus_tensor_parallel_engine* engine, isthmus_platform platform) {
  if (engine->struct_bytes < sizeof(isthmus_tensor_parallel_engine) ||
      engine->abi_version != ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI)
    return fmt::format("the engine was built for ABI {}, but this library has ABI {}", engine->abi_version,
                       ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI);
  if ((engine->platforms & 1u << platform) == 0)
    return fmt::format("engine {} does not support platform {}", engine->name, isthmus_platform_name(platform));
  return "";
}

// Returns the built-in engine for the host platform. For other platforms, returns the engine of the first plug-in that
// supports `platform`.
// Errors: throws error (UNSUPPORTED) that lists the available plug-ins.
const isthmus_tensor_parallel_engine& find_engine(isthmus_platform platform,
                                                  const selection::configuration& rules) {
  if (platform == ISTHMUS_PLATFORM_HOST) return host_engine();
  std::vector<std::string> plugin_names;
  for (const backend_entry& entry : load_backends(rules.plugins)) {
    if (entry.backend == nullptr || entry.source == "built-in") continue;
    const auto* engine = lookup_engine(entry.source);
    if (engine != nullptr && check_engine(engine, platform).empty()) return *engine;
    plugin_names.push_back(entry.name);
  }
  if (plugin_names.empty()) plugin_names.emplace_back("none");
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   fmt::format("tensor_parallel: no engine for platform {}; available plug-ins: {}",
                               isthmus_platform_name(platform), fmt::join(plugin_names, ", ")),
                   "CUDA and HIP: install the p2p plug-in; SYCL queues: set options->engine, see "
                   "isthmus/sycl/tensor_parallel.hpp");
}

constexpr int max_devices = 16;

error invalid(const char* location, const std::string& message, const char* hint) {
  return invalid_argument(location, "tensor_parallel: " + message, hint);
}

void check_devices(int n, const isthmus_device* devices) {
  if (n < 1 || n > max_devices)
    throw invalid(ISTHMUS_HERE, fmt::format("n = {} must be in [1, {}]", n, max_devices),
                  "pass the number of devices");
  if (devices == nullptr) throw invalid(ISTHMUS_HERE, "devices is NULL", "pass an array of n devices");
  for (int i = 0; i < n; ++i) {
    const unsigned platform = static_cast<unsigned>(devices[i].platform);
    if (platform >= ISTHMUS_PLATFORM_COUNT)
      throw invalid(ISTHMUS_HERE, fmt::format("devices[{}].platform = {} is out of range", i, platform),
                    "use an ISTHMUS_PLATFORM_ value of types.h");
    if (devices[i].platform != devices[0].platform)
      throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                       fmt::format("tensor_parallel: devices[0] is on platform {}, devices[{}] on {}",
                                   isthmus_platform_name(devices[0].platform), i,
                                   isthmus_platform_name(devices[i].platform)),
                       "use devices of one platform per handle");
  }
}

isthmus_tensor_parallel_options check_options(const isthmus_tensor_parallel_options* user_options) {
  isthmus_tensor_parallel_options options{};
  if (user_options == nullptr) return options;
  if (user_options->struct_bytes < sizeof options)
    throw invalid(ISTHMUS_HERE,
                  fmt::format("options->struct_bytes = {} must be at least {}", user_options->struct_bytes,
                              sizeof options),
                  "zero-initialize the options and set struct_bytes = sizeof(isthmus_tensor_parallel_options)");
  options = *user_options;
  if (!(options.timeout_s >= 0) || options.timeout_s > 1e9)
    throw invalid(ISTHMUS_HERE, fmt::format("options->timeout_s = {} must be in [0, 1e9]", options.timeout_s),
                  "pass 0 for the configured timeout");
  if (options.wire < ISTHMUS_WIRE_AUTO || options.wire > ISTHMUS_WIRE_BFLOAT16)
    throw invalid(ISTHMUS_HERE,
                  fmt::format("options->wire = {} must be in [0, 2]", static_cast<int>(options.wire)),
                  "use an ISTHMUS_WIRE_ value");
  return options;
}

// Returns "", or the reason why the arguments are invalid. The text has static storage, because the call path
// must not allocate.
const char* argument_error(isthmus_tensor_parallel handle, void* const* pointers, std::uint64_t count,
                           isthmus_datatype datatype) {
  if (handle == nullptr) return "handle is NULL";
  if (static_cast<unsigned>(datatype) >= ISTHMUS_DATATYPE_COUNT) return "datatype is out of range";
  const bool is_float =
      datatype == ISTHMUS_FLOAT32 || datatype == ISTHMUS_FLOAT16 || datatype == ISTHMUS_BFLOAT16;
  if (handle->platform != ISTHMUS_PLATFORM_HOST && !is_float)
    return "datatype must be float32, float16 or bfloat16 on devices";
  if (count == 0) return "";
  if (pointers == nullptr) return "pointers is NULL";
  const std::size_t element = isthmus_datatype_bytes(datatype);
  for (int i = 0; i < handle->n; ++i) {
    if (pointers[i] == nullptr) return "a pointer is NULL";
    if (reinterpret_cast<std::uintptr_t>(pointers[i]) % element != 0)
      return "a pointer is not aligned to its elements";
  }
  return "";
}

isthmus_status report_failure(isthmus_status status, const char* reason) {
  last_error() = make_error(status, ISTHMUS_HERE,
                            fmt::format("tensor_parallel_allreduce: {}; no tensor was modified", reason))
                     .info();
  return status;
}

}  // namespace

isthmus_tensor_parallel create(int n, const isthmus_device* devices, const isthmus_stream* streams,
                               const isthmus_tensor_parallel_options* user_options) {
  check_devices(n, devices);
  const auto options = check_options(user_options);
  const auto rules = selection::load_configuration(options.config_path);
  const isthmus_platform platform = devices[0].platform;
  // On the host no data is transferred, so rounding gains nothing. With `deterministic`, the wire format must not depend
  // on the size of the tensor.
  const bool is_exact = platform == ISTHMUS_PLATFORM_HOST || rules.deterministic;
  const isthmus_wire wire = is_exact && options.wire == ISTHMUS_WIRE_AUTO ? ISTHMUS_WIRE_EXACT : options.wire;
  const auto* engine = options.engine != nullptr ? options.engine : &find_engine(platform, rules);
  if (const std::string problem = check_engine(engine, platform); !problem.empty())
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE, "tensor_parallel: " + problem);
  const std::vector<isthmus_stream> defaults(static_cast<std::size_t>(n), nullptr);
  auto handle = std::unique_ptr<isthmus_tensor_parallel_impl>(
      new isthmus_tensor_parallel_impl{n, platform, engine, nullptr, tuning_table(rules, platform, n, wire)});
  char reason[256] = "the engine gave no reason";
  handle->state =
      engine->open(n, devices, streams != nullptr ? streams : defaults.data(),
                   options.timeout_s > 0 ? options.timeout_s : rules.timeout_s, reason, sizeof reason);
  if (handle->state == nullptr)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("tensor_parallel: engine {} cannot use these devices: {}", engine->name, reason));
  return handle.release();
}

isthmus_status allreduce(isthmus_tensor_parallel handle, void* const* pointers, uint64_t count,
                         isthmus_datatype datatype, uint64_t active) {
  if (const char* reason = argument_error(handle, pointers, count, datatype); *reason) [[unlikely]]
    return report_failure(ISTHMUS_ERROR_INVALID_ARGUMENT, reason);
  if (count == 0) return ISTHMUS_SUCCESS;
  const bool bfloat16_wire = handle->tuning.bfloat16_wire(datatype, count);
  const std::uint64_t wire_bytes = bfloat16_wire ? count * 2 : count * isthmus_datatype_bytes(datatype);
  if (handle->engine->allreduce(handle->state, pointers, count, datatype, active,
                                handle->tuning.algorithm(datatype, wire_bytes), bfloat16_wire)) [[likely]]
    return ISTHMUS_SUCCESS;
  return report_failure(ISTHMUS_ERROR_BACKEND, "the engine could not enqueue it");
}

void destroy(isthmus_tensor_parallel handle) {
  if (handle == nullptr) return;
  handle->engine->close(handle->state);
  delete handle;
}

}  // namespace isthmus::tensor_parallel
