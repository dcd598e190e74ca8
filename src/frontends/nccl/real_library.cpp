#include "frontends/nccl/real_library.hpp"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace isthmus::nccl_shim {
namespace {

constexpr const char* file_name = "libnccl.so.2";
constexpr std::size_t longest = 4096;

struct found_library {
  void* handle = nullptr;
  char path[longest] = "";
};

bool is_this_library(void* handle) { return dlsym(handle, "isthmus_nccl_library") != nullptr; }

// Loads `path` unless it is this library, under whatever name.
bool try_path(const char* path, int more_flags, found_library& found) {
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | more_flags);
  if (handle == nullptr) return false;
  if (is_this_library(handle) || dlsym(handle, "ncclGetVersion") == nullptr) {
    dlclose(handle);
    return false;
  }
  found.handle = handle;
  link_map* map = nullptr;
  const bool known = dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && *map->l_name != '\0';
  std::snprintf(found.path, sizeof found.path, "%s", known ? map->l_name : path);
  return true;
}

bool try_folder(const char* folder, std::size_t length, found_library& found) {
  char path[longest];
  std::snprintf(path, sizeof path, "%.*s/%s", static_cast<int>(length), folder, file_name);
  return access(path, R_OK) == 0 && try_path(path, 0, found);
}

// "folder:folder:..."; $ORIGIN, at the beginning of one, is `origin`.
bool try_folders(const char* list, const char* origin, found_library& found) {
  while (list != nullptr && *list != '\0') {
    const std::size_t length = std::strcspn(list, ":");
    char folder[longest];
    std::size_t skip = 0;
    for (const char* const word : {"$ORIGIN", "${ORIGIN}"})
      if (std::strncmp(list, word, std::strlen(word)) == 0) skip = std::strlen(word);
    std::snprintf(folder, sizeof folder, "%s%.*s", skip > 0 ? origin : "", static_cast<int>(length - skip),
                  list + skip);
    if (try_folder(folder, std::strlen(folder), found)) return true;
    list += length + (list[length] == ':' ? 1 : 0);
  }
  return false;
}

// The folders that a loaded library or program names for what it needs (DT_RUNPATH, DT_RPATH).
bool try_neighbours_of(const link_map& object, found_library& found) {
  const char* texts = nullptr;
  for (const ElfW(Dyn)* each = object.l_ld; each != nullptr && each->d_tag != DT_NULL; ++each)
    if (each->d_tag == DT_STRTAB) texts = reinterpret_cast<const char*>(each->d_un.d_ptr);
  if (texts == nullptr) return false;
  char file[longest];
  if (object.l_name[0] != '\0')
    std::snprintf(file, sizeof file, "%s", object.l_name);
  else if (const ssize_t length = readlink("/proc/self/exe", file, sizeof file - 1); length > 0)
    file[length] = '\0';
  else
    return false;
  char* const slash = std::strrchr(file, '/');
  if (slash == nullptr) return false;
  *slash = '\0';
  for (const ElfW(Dyn)* each = object.l_ld; each->d_tag != DT_NULL; ++each)
    if ((each->d_tag == DT_RUNPATH || each->d_tag == DT_RPATH) &&
        try_folders(texts + each->d_un.d_val, file, found))
      return true;
  return false;
}

const link_map* loaded_objects() {
  link_map* map = nullptr;
  void* const program = dlopen(nullptr, RTLD_LAZY);
  if (program == nullptr || dlinfo(program, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) return nullptr;
  while (map != nullptr && map->l_prev != nullptr) map = map->l_prev;
  return map;
}

bool try_loaded(found_library& found) {
  for (const link_map* each = loaded_objects(); each != nullptr; each = each->l_next) {
    const char* const slash = std::strrchr(each->l_name, '/');
    const char* const name = slash == nullptr ? each->l_name : slash + 1;
    if (std::strncmp(name, "libnccl.so", 10) == 0 && try_path(each->l_name, RTLD_NOLOAD, found)) return true;
  }
  return false;
}

// What would answer without this library, by whatever name it goes.
bool try_next(found_library& found) {
  void* const next = dlsym(RTLD_NEXT, "ncclGetVersion");
  Dl_info where{};
  return next != nullptr && dladdr(next, &where) != 0 && try_path(where.dli_fname, RTLD_NOLOAD, found);
}

bool try_neighbours(found_library& found) {
  for (const link_map* each = loaded_objects(); each != nullptr; each = each->l_next)
    if (try_neighbours_of(*each, found)) return true;
  return false;
}

bool try_installed(found_library& found) {
  for (const char* const name :
       {"libnccl.so", "libnccl.so.2"})  // by the linker; the second may be this library
    if (try_path(name, 0, found)) return true;
  for (const char* const folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib",
                                   "/usr/local/cuda/lib64", "/opt/nvidia/nccl/lib"})
    if (try_folder(folder, std::strlen(folder), found)) return true;
  return false;
}

found_library* find() {
  static found_library found;
  const char* const asked = std::getenv("ISTHMUS_NCCL_LIBRARY");
  if (asked != nullptr && *asked != '\0') {
    if (try_path(asked, 0, found)) return &found;
    const char* const why = dlerror();
    std::fprintf(stderr, "isthmus: nccl: ISTHMUS_NCCL_LIBRARY=%s is no NCCL: %s\n", asked,
                 why != nullptr ? why : "it is Isthmus' own, or has no ncclGetVersion");
    return nullptr;
  }
  if (try_next(found) || try_loaded(found) || try_neighbours(found) ||
      try_folders(std::getenv("LD_LIBRARY_PATH"), "", found) || try_installed(found))
    return &found;
  std::fprintf(stderr,
               "isthmus: nccl: this process calls NCCL, but no libnccl.so.2 was found; name it in "
               "ISTHMUS_NCCL_LIBRARY\n");
  return nullptr;
}

const found_library* real() {
  static const found_library* found = nullptr;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { found = find(); });
  return found;
}

}  // namespace

void* real_library() { return real() == nullptr ? nullptr : real()->handle; }

const char* real_library_path() { return real() == nullptr ? nullptr : real()->path; }

}  // namespace isthmus::nccl_shim
