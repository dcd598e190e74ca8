// Opens the engine of a preloaded library, which is installed in the same folder. Shared by the
// MPI and NCCL front ends. Uses only the C library, because every process that the program starts
// loads the preloaded library.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace isthmus::preload {

// Names of the intercepted library in printed messages.
struct preload_labels {
  const char* short_name;  // "mpi"
  const char* name;        // "MPI"
  const char* engine;      // "the engine of this MPI family"
};

// Prints a line to standard error unless ISTHMUS_LOG is "off" or "error".
inline void warn(const preload_labels& labels, const char* problem, const char* detail) {
  const char* const level = std::getenv("ISTHMUS_LOG");
  if (level != nullptr && (std::strcmp(level, "off") == 0 || std::strcmp(level, "error") == 0)) return;
  std::fprintf(stderr, "isthmus: %s: warning: %s%s; all calls go to %s\n", labels.short_name, problem, detail,
               labels.name);
}

// Writes the path of `file` in the folder of the library that contains `address`. Returns false if that folder
// is unknown or the path is too long.
inline bool path_in_own_folder(const void* address, const char* file, char* path, std::size_t capacity) {
  Dl_info self{};
  if (dladdr(address, &self) == 0) return false;
  const char* const slash = std::strrchr(self.dli_fname, '/');
  const int folder = slash == nullptr ? 0 : static_cast<int>(slash + 1 - self.dli_fname);
  return std::snprintf(path, capacity, "%.*s%s", folder, self.dli_fname, file) < static_cast<int>(capacity);
}

// Opens the engine and returns the table that start(entry) gets from its entry point `symbol`, of type
// EntryPoint*. Returns NULL and prints a warning if the engine cannot be opened or has a different version.
// The engine stays loaded.
template <typename Table, typename EntryPoint, typename Start>
const Table* open_engine(const preload_labels& labels, const void* address, const char* file,
                         const char* symbol, Start start) {
  char path[4096];
  if (!path_in_own_folder(address, file, path, sizeof path)) return nullptr;
  void* const engine = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (engine == nullptr) {
    char problem[128];
    std::snprintf(problem, sizeof problem, "%s cannot be opened: ", labels.engine);
    warn(labels, problem, dlerror());
    return nullptr;
  }
  const auto entry = reinterpret_cast<EntryPoint*>(dlsym(engine, symbol));
  const Table* const table = entry == nullptr ? nullptr : start(entry);
  if (table != nullptr && table->struct_bytes == sizeof(Table)) return table;
  warn(labels, "the engine has a different version: ", path);
  return nullptr;
}

}  // namespace isthmus::preload
