// Discovery of backends: built-in backends and plug-ins (.so files that export ISTHMUS_BACKEND_SYMBOL).
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <isthmus/backend.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isthmus {

// A backend that this process can try, or the reason why it was skipped.
struct backend_entry {
  std::string name;
  const isthmus_backend* backend = nullptr;  // nullptr: skipped
  std::string source;                        // "built-in" or the plug-in's path
  std::string reason;                        // why it was skipped
};

// Lifetime: a plug-in stays loaded until the process exits, because its threads or static objects
// may outlive every communicator.
// Errors: throws error (CONFIG) with the path and the defect.
const isthmus_backend* load_plugin(const std::string& path);

// Returns all backends, in this order: built-in backends, `configured` plug-ins (name, path), then plug-ins in
// the folders of ISTHMUS_PLUGIN_PATH and in isthmus/ next to libisthmus.so.
// Errors: throws error (CONFIG) if a configured plug-in is defective. Defective plug-ins of a scan are skipped,
// with the reason in their entry.
std::vector<backend_entry> load_backends(
    const std::vector<std::pair<std::string, std::string>>& configured_plugins);

// A version of isthmus/backend.h that a plug-in may be built for.
struct plugin_abi {
  std::uint32_t version;
  const char* symbol;                   // symbol that such a plug-in exports
  std::size_t min_bytes;                // minimum size of its isthmus_backend
  void (*translate)(isthmus_backend&);  // converts the fields to their current meaning; NULL: unchanged
};
// Returns the ABI versions that this library accepts, newest first.
std::span<const plugin_abi> known_abis();

// Converts a plug-in's backend table for use by the runtime. Returns `plugin_backend` itself, or a complete
// copy with process lifetime if the table is shorter or has an older ABI. Reads no byte beyond struct_bytes.
// Errors: throws std::invalid_argument with the defect.
const isthmus_backend* adopt_backend(const isthmus_backend* plugin_backend,
                                     std::span<const plugin_abi> abis = known_abis());

}  // namespace isthmus
