#include "operators/tensor_parallel/find_engine.hpp"

#include "base/dynamic_library.hpp"
#include "base/error.hpp"
#include "core/plugin.hpp"
#include "operators/tensor_parallel/host_engine.hpp"

namespace isthmus::tensor_parallel {
namespace {

const isthmus_tensor_parallel_engine* lookup_engine(const std::string& path) {
  const dynamic_library plugin = dynamic_library::find_loaded(path.c_str());  // load_backends keeps it loaded
  if (!plugin) return nullptr;
  using entry_point = const isthmus_tensor_parallel_engine* (*)();
  const auto entry = reinterpret_cast<entry_point>(plugin.symbol(ISTHMUS_TENSOR_PARALLEL_ENGINE_SYMBOL));
  return entry == nullptr ? nullptr : entry();
}

}  // namespace

std::string check_engine(const isthmus_tensor_parallel_engine* engine, isthmus_platform platform) {
  if (engine->struct_bytes < sizeof(isthmus_tensor_parallel_engine) ||
      engine->abi_version != ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI)
    return fmt::format("the engine was built for ABI {}, but this library has ABI {}", engine->abi_version,
                       ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI);
  if ((engine->platforms & 1u << platform) == 0)
    return fmt::format("engine {} does not support platform {}", engine->name, isthmus_platform_name(platform));
  return "";
}

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

}  // namespace isthmus::tensor_parallel
