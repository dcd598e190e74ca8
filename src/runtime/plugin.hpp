// Finds backends: the built-in ones and plug-ins (.so files that export ISTHMUS_BACKEND_SYMBOL).
#pragma once

#include <isthmus/backend.h>

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

// nullptr, or what is wrong with a backend's header.
std::string check_backend(const isthmus_backend* backend);

}  // namespace isthmus
