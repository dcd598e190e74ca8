// Discovery of backends: built-in backends and plug-ins (.so files that export ISTHMUS_BACKEND_SYMBOL).
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <isthmus/backend.h>

#include <string>
#include <utility>
#include <vector>

namespace isthmus {

inline constexpr const char* built_in_source = "built-in";
inline constexpr const char* plugin_path_variable = "ISTHMUS_PLUGIN_PATH";

// A backend that this process can try, or the reason why it was skipped.
struct backend_entry {
  std::string name;
  const isthmus_backend* backend = nullptr;  // nullptr: skipped
  std::string source;                        // built_in_source or the plug-in's path
  std::string reason;                        // why it was skipped
};

// Lifetime: a plug-in stays loaded until the process exits, because its threads or static objects
// may outlive every communicator.
// Errors: throws error (CONFIG) with the path and the defect.
const isthmus_backend* load_plugin(const std::string& path);

// Returns all backends, in this order: built-in backends, `configured` plug-ins (name, path), then plug-ins in
// the folders of ISTHMUS_PLUGIN_PATH and in isthmus/ next to libisthmus.so.
// Errors: throws error (CONFIG) if a configured plug-in is defective. Defective plug-ins of a scan are skipped,
// with the reason in their entry. Folders of ISTHMUS_PLUGIN_PATH that cannot be read have one entry of that name.
std::vector<backend_entry> load_backends(
    const std::vector<std::pair<std::string, std::string>>& configured_plugins);

// Checks a plug-in's backend. Reads no byte beyond its struct_bytes.
// Errors: throws std::invalid_argument with the defect.
void check_backend(const isthmus_backend* backend);

// Returns the built-in backends in the order in which info lists them. The definition is generated from the list
// in src/CMakeLists.txt, so the core does not depend on any backend.
std::vector<const isthmus_backend*> builtin_backends();

}  // namespace isthmus
