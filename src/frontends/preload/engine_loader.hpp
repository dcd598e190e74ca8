// Loads libraries from inside a preloaded library: its engine, which is installed in the same folder, and libraries
// that the process has loaded. Also prints the messages of preloaded libraries. Shared by the MPI, NCCL and ggml front
// ends. Uses only the C library, because every process that the program starts loads the preloaded library.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "base/characters.hpp"
#include "base/trust.hpp"

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

// Prints one line to standard error: "isthmus: SHORT_NAME: ", and the text without control characters, so that the name of
// a file cannot forge other lines.
[[gnu::format(printf, 2, 3)]] inline void print_line(const char* short_name, const char* format, ...) {
  char text[8192], line[4 * sizeof text];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  char* end = line;
  for (const char* rest = text; *rest != '\0';) {
    const std::size_t length = printable_length({rest, std::strlen(rest)});
    const escaped_byte escaped(*rest);
    const std::size_t written = length == 0 ? std::strlen(escaped.text) : length;
    std::memcpy(end, length == 0 ? escaped.text : rest, written);
    end += written;
    rest += length == 0 ? 1 : length;
  }
  std::fprintf(stderr, "isthmus: %s: %.*s\n", short_name, static_cast<int>(end - line), line);
}

// Returns whether ISTHMUS_LOG is "off" or "error".
inline bool is_logging_silenced() {
  const char* const level = environment_variable("ISTHMUS_LOG");
  return level != nullptr && (std::strcmp(level, "off") == 0 || std::strcmp(level, "error") == 0);
}

// Prints a line to standard error unless logging is silenced.
inline void warn(const preload_labels& labels, const char* problem, const char* detail) {
  if (is_logging_silenced()) return;
  print_line(labels.short_name, "warning: %s%s; all calls go to %s", problem, detail, labels.name);
}

// Returns true if the variable has a value other than 0.
inline bool is_enabled(const char* variable) {
  const char* const value = environment_variable(variable);
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

inline const char* file_name_of(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

inline bool starts_with(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

// Opens a library that the process has loaded; NULL if it has not. `flags` may contain RTLD_GLOBAL.
inline void* find_loaded(const char* path, int flags = 0) {
  return dlopen(path, RTLD_LAZY | RTLD_NOLOAD | flags);
}

inline void* open_program() { return dlopen(nullptr, RTLD_LAZY); }

// Opens a library by a name without folder, in the folders of the dynamic linker.
inline void* open_by_name(const char* name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }

// Opens a library unless others than trusted users can replace it, which sets `reason`. Returns NULL on failure.
inline void* open_trusted(const char* path, trust_problem& reason) {
  char resolved[PATH_MAX];
  return find_untrusted_code(path, resolved, reason) ? nullptr : dlopen(resolved, RTLD_NOW | RTLD_LOCAL);
}

// The first element of the list of loaded libraries: the program, without a name. NULL on failure.
inline const link_map* first_loaded_library() {
  link_map* map = nullptr;
  void* const program = open_program();
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

// Opens `file` in the folder of the library that contains `address`, which is as trusted as that library. `flags`:
// RTLD_LAZY or RTLD_NOW.
inline void* open_from_own_folder(const void* address, const char* file, int flags) {
  char path[PATH_MAX];
  return path_in_own_folder(address, file, path, sizeof path) ? dlopen(path, flags | RTLD_LOCAL) : nullptr;
}

// Opens the engine and returns the table that start(entry) gets from its entry point `symbol`, of type
// EntryPoint*. Returns NULL and prints a warning if the engine cannot be opened or has a different version.
// The engine stays loaded.
template <typename Table, typename EntryPoint, typename Start>
const Table* open_engine(const preload_labels& labels, const void* address, const char* file,
                         const char* symbol, Start start) {
  void* const engine = open_from_own_folder(address, file, RTLD_LAZY);
  if (engine == nullptr) {
    char problem[128];
    std::snprintf(problem, sizeof problem, "%s cannot be opened: ", labels.engine);
    const char* const error = dlerror();
    warn(labels, problem, error != nullptr ? error : file);
    return nullptr;
  }
  const auto entry = reinterpret_cast<EntryPoint*>(dlsym(engine, symbol));
  const Table* const table = entry == nullptr ? nullptr : start(entry);
  if (table != nullptr && table->struct_bytes == sizeof(Table)) return table;
  warn(labels, "the engine has a different version: ", file);
  return nullptr;
}

}  // namespace isthmus::preload
