// Finds backends: the built-in ones and plug-ins (.so files that export ISTHMUS_BACKEND_SYMBOL).
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isthmus {

// A backend that this process can try, or the reason why it can't.
struct backend_entry {
  std::string name;
  const isthmus_backend* backend = nullptr;  // nullptr: skipped
  std::string source;                        // "built-in" or the plug-in's path
  std::string reason;                        // why it was skipped
};

// Throws error (CONFIG) that says what is wrong with the file. A plug-in stays loaded until the process
// ends, because its threads or static objects may outlive every communicator. Thread-safe.
const isthmus_backend* load_plugin(const std::string& path);

// All backends: built-in, then `configured` (name, path) plug-ins, whose failures are errors (CONFIG), then
// those found by scanning ISTHMUS_PLUGIN_PATH and the folder isthmus/ beside libisthmus.so, whose
// failures are reasoned skips. Thread-safe.
std::vector<backend_entry> find_backends(const std::vector<std::pair<std::string, std::string>>& configured);

// A version of isthmus/backend.h that a plug-in may be built for.
struct plugin_abi {
  std::uint32_t version;
  const char* symbol;                   // what such a plug-in exports
  std::size_t min_bytes;              // of its isthmus_backend
  void (*translate)(isthmus_backend&);  // from what the fields meant to what they mean now; NULL: the same
};
// Those that this library takes, the newest first.
std::span<const plugin_abi> known_abis();

// What the runtime can use in place of what a plug-in gave: the same, or, where that is shorter or of an older
// ABI, a whole one that lives as long as the process. Throws std::invalid_argument with what is wrong with it.
// Reads no byte beyond its struct_bytes. Thread-safe.
const isthmus_backend* adopt_backend(const isthmus_backend* plugin_backend,
                                     std::span<const plugin_abi> abis = known_abis());

}  // namespace isthmus
