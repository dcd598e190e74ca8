// How a preloaded library opens its engine, which lies beside it. With the C library alone: every process that
// the program starts loads the preloaded library. Shared by the front ends of MPI and NCCL.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace isthmus::preload {

// Whose calls are taken, as it stands in what is printed.
struct preload_labels {
  const char* short_name;  // "mpi"
  const char* name;        // "MPI"
  const char* engine;      // "the engine of this MPI family"
};

// A line on standard error, unless ISTHMUS_LOG asks for errors alone or nothing.
inline void warn(const preload_labels& labels, const char* problem, const char* detail) {
  const char* const level = std::getenv("ISTHMUS_LOG");
  if (level != nullptr && (std::strcmp(level, "off") == 0 || std::strcmp(level, "error") == 0)) return;
  std::fprintf(stderr, "isthmus: %s: warning: %s%s; all calls go to %s\n", labels.short_name, problem, detail,
               labels.name);
}

// The path of `file` in the folder of the library that holds `own`; false where it is not known, or too long.
inline bool sibling_path(const void* address, const char* file, char* path, std::size_t capacity) {
  Dl_info self{};
  if (dladdr(address, &self) == 0) return false;
  const char* const slash = std::strrchr(self.dli_fname, '/');
  const int folder = slash == nullptr ? 0 : static_cast<int>(slash + 1 - self.dli_fname);
  return std::snprintf(path, capacity, "%.*s%s", folder, self.dli_fname, file) < static_cast<int>(capacity);
}

// The engine's table: what its `symbol`, of type EntryPoint*, gives to start(entry). NULL, with a warning,
// where the engine can't be opened or is of another version. It stays loaded.
template <typename Table, typename EntryPoint, typename Start>
const Table* open_engine(const preload_labels& labels, const void* address, const char* file, const char* symbol,
                         Start start) {
  char path[4096];
  if (!sibling_path(address, file, path, sizeof path)) return nullptr;
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
  warn(labels, "not an engine of this version: ", path);
  return nullptr;
}

}  // namespace isthmus::preload
