#include "frontends/nccl/real_library.hpp"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "frontends/preload/engine_loader.hpp"

namespace isthmus::nccl_shim {
namespace {

constexpr const char* file_name = "libnccl.so.2";
constexpr std::size_t max_path_bytes = 4096;

struct real_nccl {
  void* handle = nullptr;
  char path[max_path_bytes] = "";
};

bool is_this_library(void* handle) { return dlsym(handle, "isthmus_nccl_library") != nullptr; }

// Loads `path` unless it is this library under another name.
bool try_path(const char* path, int extra_flags, real_nccl& result) {
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | extra_flags);
  if (handle == nullptr) return false;
  if (is_this_library(handle) || dlsym(handle, "ncclGetVersion") == nullptr) {
    dlclose(handle);
    return false;
  }
  result.handle = handle;
  link_map* map = nullptr;
  const bool has_path = dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && *map->l_name != '\0';
  std::snprintf(result.path, sizeof result.path, "%s", has_path ? map->l_name : path);
  return true;
}

bool try_folder(const char* folder, std::size_t length, real_nccl& result) {
  char path[max_path_bytes];
  std::snprintf(path, sizeof path, "%.*s/%s", static_cast<int>(length), folder, file_name);
  return access(path, R_OK) == 0 && try_path(path, 0, result);
}

// Tries each folder in a list "folder:folder:...". A leading $ORIGIN is replaced by `origin`.
bool try_folders(const char* list, const char* origin, real_nccl& result) {
  while (list != nullptr && *list != '\0') {
    const std::size_t length = std::strcspn(list, ":");
    char folder[max_path_bytes];
    std::size_t variable_length = 0;
    for (const char* const variable : {"$ORIGIN", "${ORIGIN}"})
      if (std::strncmp(list, variable, std::strlen(variable)) == 0) variable_length = std::strlen(variable);
    std::snprintf(folder, sizeof folder, "%s%.*s", variable_length > 0 ? origin : "",
                  static_cast<int>(length - variable_length), list + variable_length);
    if (try_folder(folder, std::strlen(folder), result)) return true;
    list += length + (list[length] == ':' ? 1 : 0);
  }
  return false;
}

// Tries the folders in the run path (DT_RUNPATH, DT_RPATH) of a loaded library or of the program.
bool search_run_path(const link_map& object, real_nccl& result) {
  const char* strings = nullptr;
  for (const ElfW(Dyn)* entry = object.l_ld; entry != nullptr && entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
  if (strings == nullptr) return false;
  char file[max_path_bytes];
  if (object.l_name[0] != '\0')
    std::snprintf(file, sizeof file, "%s", object.l_name);
  else if (const ssize_t length = readlink("/proc/self/exe", file, sizeof file - 1); length > 0)
    file[length] = '\0';
  else
    return false;
  char* const slash = std::strrchr(file, '/');
  if (slash == nullptr) return false;
  *slash = '\0';
  for (const ElfW(Dyn)* entry = object.l_ld; entry->d_tag != DT_NULL; ++entry)
    if ((entry->d_tag == DT_RUNPATH || entry->d_tag == DT_RPATH) &&
        try_folders(strings + entry->d_un.d_val, file, result))
      return true;
  return false;
}

bool try_loaded(real_nccl& result) {
  for (const link_map* object = preload::first_loaded_library(); object != nullptr; object = object->l_next) {
    if (preload::starts_with(preload::file_name_of(object->l_name), "libnccl.so") &&
        try_path(object->l_name, RTLD_NOLOAD, result))
      return true;
  }
  return false;
}

// Tries the library that would be called without this one, whatever its name.
bool try_next(real_nccl& result) {
  void* const function = dlsym(RTLD_NEXT, "ncclGetVersion");
  Dl_info info{};
  return function != nullptr && dladdr(function, &info) != 0 && try_path(info.dli_fname, RTLD_NOLOAD, result);
}

bool try_run_paths(real_nccl& result) {
  for (const link_map* object = preload::first_loaded_library(); object != nullptr; object = object->l_next)
    if (search_run_path(*object, result)) return true;
  return false;
}

bool try_installed(real_nccl& result) {
  for (const char* const name :
       {"libnccl.so", "libnccl.so.2"})  // resolved by the dynamic linker; the second may be this library
    if (try_path(name, 0, result)) return true;
  for (const char* const folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib",
                                   "/usr/local/cuda/lib64", "/opt/nvidia/nccl/lib"})
    if (try_folder(folder, std::strlen(folder), result)) return true;
  return false;
}

real_nccl* find() {
  static real_nccl result;
  const char* const path = std::getenv("ISTHMUS_NCCL_LIBRARY");
  if (path != nullptr && *path != '\0') {
    if (try_path(path, 0, result)) return &result;
    const char* const error = dlerror();
    std::fprintf(stderr, "isthmus: nccl: ISTHMUS_NCCL_LIBRARY=%s is not an NCCL library: %s\n", path,
                 error != nullptr ? error : "it is Isthmus's own library, or it has no ncclGetVersion");
    return nullptr;
  }
  if (try_next(result) || try_loaded(result) || try_run_paths(result) ||
      try_folders(std::getenv("LD_LIBRARY_PATH"), "", result) || try_installed(result))
    return &result;
  std::fprintf(
      stderr,
      "isthmus: nccl: this process calls NCCL, but no libnccl.so.2 was found; set ISTHMUS_NCCL_LIBRARY "
      "to its path\n");
  return nullptr;
}

const real_nccl* find_once() {
  static const real_nccl* result = nullptr;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { result = find(); });
  return result;
}

}  // namespace

void* real_library() { return find_once() == nullptr ? nullptr : find_once()->handle; }

const char* real_library_path() { return find_once() == nullptr ? nullptr : find_once()->path; }

}  // namespace isthmus::nccl_shim
