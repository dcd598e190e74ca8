// Loads libraries from inside a preloaded library: its engine, which is installed in the same folder, and libraries
// that the process has loaded. Shared by the MPI and NCCL front ends. Uses only the C library, because every process
// that the program starts loads the preloaded library.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace isthmus::preload {

using any_function = void (*)();

// An entry point that an engine gives to its preloaded library: a C function that calls Function and never throws into the program. OnException is called with the arguments
// and returns the result for the program.
template <auto Function, auto OnException>
struct guarded_function;
template <typename... Arguments, int (*Function)(Arguments...), auto OnException>
struct guarded_function<Function, OnException> {
  static int call(Arguments... arguments) noexcept try { return Function(arguments...); } catch (...) {
    return OnException(arguments...);
  }
};

template <auto Function, auto OnException>
any_function guarded_entry() {
  return reinterpret_cast<any_function>(&guarded_function<Function, OnException>::call);
}

// Names of the intercepted library in printed messages.
struct preload_labels {
  const char* short_name;  // "mpi"
  const char* name;        // "MPI"
  const char* engine;      // "the engine of this MPI family"
};

// Returns whether ISTHMUS_LOG is "off" or "error".
inline bool is_logging_silenced() {
  const char* const level = std::getenv("ISTHMUS_LOG");
  return level != nullptr && (std::strcmp(level, "off") == 0 || std::strcmp(level, "error") == 0);
}

// Prints a line to standard error unless logging is silenced.
inline void warn(const preload_labels& labels, const char* problem, const char* detail) {
  if (is_logging_silenced()) return;
  std::fprintf(stderr, "isthmus: %s: warning: %s%s; all calls go to %s\n", labels.short_name, problem, detail,
               labels.name);
}

inline const char* file_name_of(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

inline bool starts_with(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

// The first element of the list of loaded libraries: the program, without a name. NULL on failure.
inline const link_map* first_loaded_library() {
  link_map* map = nullptr;
  void* const program = dlopen(nullptr, RTLD_LAZY);
  if (program == nullptr || dlinfo(program, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) return nullptr;
  while (map != nullptr && map->l_prev != nullptr) map = map->l_prev;
  return map;
}

// Writes the path of `file` in the folder of the library that contains `address`. Returns false if that folder
// is unknown or the path is too long.
inline bool path_in_own_folder(const void* address, const char* file, char* path, std::size_t capacity) {
  Dl_info self{};
  if (dladdr(address, &self) == 0) return false;
  const int folder = static_cast<int>(file_name_of(self.dli_fname) - self.dli_fname);
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
