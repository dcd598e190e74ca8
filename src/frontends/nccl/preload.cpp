// libisthmus_nccl_preload.so: intercepts NCCL in an unmodified program. It is preloaded or installed in NCCL's
// place and exports all of NCCL's functions. Each function is a jump, either to the program's own NCCL or to
// the engine (libisthmus_nccl_engine.so) if Isthmus can handle the function. The target is looked up when the
// function is first called.
//
// The jumps preserve all arguments and results, including structures passed by value, so they work with every
// NCCL version that keeps these names. Processes that the program starts load this library as well. For this
// reason it depends only on the C library and opens nothing before NCCL is called.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include "frontends/nccl/engine_abi.hpp"
#include "frontends/preload/engine_loader.hpp"

using namespace isthmus::nccl_shim;
namespace preload = isthmus::preload;

namespace {

// ---- the program's own NCCL ----
//
// The preloaded library hides it because it has the same name. Search order: ISTHMUS_NCCL_LIBRARY; libraries that the
// process has loaded; the run paths of those libraries (PyTorch and JAX list the folder of their NCCL wheel there);
// LD_LIBRARY_PATH; the usual install folders. A file that is not loaded yet must be trusted (base/trust.hpp).

constexpr const char* file_name = "libnccl.so.2";
constexpr std::size_t max_path_bytes = PATH_MAX;
constexpr preload::preload_labels labels = {"nccl", "NCCL", "the engine"};

struct real_nccl {
  void* handle = nullptr;
  char path[max_path_bytes] = "";
  isthmus::trust_problem untrusted;  // why the first file that was not trusted was not loaded
};

bool is_this_library(void* handle) { return dlsym(handle, "isthmus_nccl_library") != nullptr; }

// Uses an open library unless it is this library under another name.
bool use(void* handle, const char* path, real_nccl& result) {
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

bool try_path(const char* path, real_nccl& result) {
  isthmus::trust_problem reason;
  void* const handle = preload::open_trusted(path, reason);
  if (result.untrusted.text[0] == '\0') result.untrusted = reason;
  return use(handle, path, result);
}

bool try_folder(const char* folder, std::size_t length, real_nccl& result) {
  char path[max_path_bytes];
  std::snprintf(path, sizeof path, "%.*s/%s", static_cast<int>(length), folder, file_name);
  return access(path, R_OK) == 0 && try_path(path, result);
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
        use(preload::find_loaded(object->l_name), object->l_name, result))
      return true;
  }
  return false;
}

// Tries the library that would be called without this one, whatever its name.
bool try_next(real_nccl& result) {
  void* const function = dlsym(RTLD_NEXT, "ncclGetVersion");
  Dl_info info{};
  return function != nullptr && dladdr(function, &info) != 0 &&
         use(preload::find_loaded(info.dli_fname), info.dli_fname, result);
}

bool try_run_paths(real_nccl& result) {
  for (const link_map* object = preload::first_loaded_library(); object != nullptr; object = object->l_next)
    if (search_run_path(*object, result)) return true;
  return false;
}

bool try_installed(real_nccl& result) {
  // Resolved by the dynamic linker, which also searches LD_LIBRARY_PATH but checks no owner. The second may be this library.
  if (result.untrusted.text[0] == '\0')
    for (const char* const name : {"libnccl.so", file_name})
      if (use(preload::open_by_name(name), name, result)) return true;
  for (const char* const folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib",
                                   "/usr/local/cuda/lib64", "/opt/nvidia/nccl/lib"})
    if (try_folder(folder, std::strlen(folder), result)) return true;
  return false;
}

real_nccl* find() {
  static real_nccl result;
  const char* const path = isthmus::environment_variable("ISTHMUS_NCCL_LIBRARY");
  if (path != nullptr && *path != '\0') {
    if (try_path(path, result)) return &result;
    const char* const error = dlerror();
    if (result.untrusted.text[0] != '\0')
      preload::print_line(labels.short_name, "ISTHMUS_NCCL_LIBRARY=%s is not loaded: %s", path,
                          result.untrusted.text);
    else
      preload::print_line(
          labels.short_name, "ISTHMUS_NCCL_LIBRARY=%s is not an NCCL library: %s", path,
          error != nullptr ? error : "it is Isthmus's own library, or it has no ncclGetVersion");
    return nullptr;
  }
  if (try_next(result) || try_loaded(result) || try_run_paths(result) ||
      try_folders(isthmus::environment_variable("LD_LIBRARY_PATH"), "", result) || try_installed(result)) {
    if (result.untrusted.text[0] != '\0')
      preload::print_line(labels.short_name, "warning: %s is used, because another NCCL is not trusted: %s",
                          result.path, result.untrusted.text);
    return &result;
  }
  const bool is_untrusted = result.untrusted.text[0] != '\0';
  preload::print_line(
      labels.short_name,
      "this process calls NCCL, but no libnccl.so.2 was found%s%s; set ISTHMUS_NCCL_LIBRARY to its path",
      is_untrusted ? " that is trusted: " : "", result.untrusted.text);
  return nullptr;
}

const real_nccl* find_once() {
  static const real_nccl* result = nullptr;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { result = find(); });
  return result;
}

// Return a dlopen handle and its path. If there is no NCCL, they print a line to standard error and return NULL.
// Thread safety: any thread.
void* real_library() { return find_once() == nullptr ? nullptr : find_once()->handle; }
const char* real_library_path() { return find_once() == nullptr ? nullptr : find_once()->path; }

// ---- targets of the functions ----

constexpr int system_error = 2, invalid_usage = 5;  // ncclSystemError, ncclInvalidUsage

// The target of a function name. The jumps read `target`, so it must be the first member.
struct jump_entry {
  any_function target;
  const char* name;
  bool is_handled;
};

// Returns whether the engine handles a function that is not a collective or message.
constexpr bool is_handled_function(std::string_view name) {
#define NCCL_IS_HANDLED(Name, member, handler) \
  if (name == "nccl" #Name) return true;
  NCCL_HANDLED_FUNCTIONS(NCCL_IS_HANDLED)
#undef NCCL_IS_HANDLED
  return false;
}

int fail_without_nccl() { return system_error; }
int fail_missing_function() { return invalid_usage; }
// Programs print the results of these two after a failed call.
const char* text_for_no_nccl() { return "Isthmus found no NCCL library to pass the call through to"; }
const char* text_for_missing_function() { return ""; }

bool returns_text(const char* name) {
  return std::strcmp(name, "ncclGetErrorString") == 0 || std::strcmp(name, "ncclGetLastError") == 0;
}

any_function real_function(const char* name) {
  void* const library = real_library();
  if (library == nullptr)
    return returns_text(name) ? reinterpret_cast<any_function>(text_for_no_nccl)
                              : reinterpret_cast<any_function>(fail_without_nccl);
  if (void* const target = dlsym(library, name)) return reinterpret_cast<any_function>(target);
  return returns_text(name) ? reinterpret_cast<any_function>(text_for_missing_function)
                            : reinterpret_cast<any_function>(fail_missing_function);
}

any_function find_real_or_null(const char* name) {
  void* const library = real_library();
  return library == nullptr ? nullptr : reinterpret_cast<any_function>(dlsym(library, name));
}

const engine_table* open_engine() {
  const char* const setting = isthmus::environment_variable("ISTHMUS_NCCL");
  if (setting != nullptr && (std::strcmp(setting, "off") == 0 || std::strcmp(setting, "0") == 0))
    return nullptr;
  if (real_library() == nullptr) return nullptr;
  using entry_point = const engine_table*(const engine_host*);
  static const engine_host host = {sizeof(engine_host), find_real_or_null};
  return preload::open_engine<engine_table, entry_point>(labels, reinterpret_cast<void*>(&open_engine),
                                                         "libisthmus_nccl_engine.so", engine_symbol,
                                                         [](entry_point* start) { return start(&host); });
}

const engine_table* loaded_engine() {
  static const engine_table* engine = nullptr;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { engine = open_engine(); });
  return engine;
}

}  // namespace

extern "C" {
// Used only by the jumps below.
#define NCCL_ENTRY(function, is_handled)                                                          \
  [[gnu::visibility("hidden"), gnu::used]] constinit jump_entry isthmus_nccl_entry_##function = { \
      nullptr, #function, is_handled};
#define NATIVE_FUNCTION(Name, ...) NCCL_ENTRY(nccl##Name, is_handled_function("nccl" #Name))
#define NATIVE_COLLECTIVE(Name, ...) NCCL_ENTRY(nccl##Name, true) NCCL_ENTRY(nccl##Name##Config, true)
#define NATIVE_MESSAGE(Name, ...) NCCL_ENTRY(nccl##Name, true)
#define NATIVE_NAME(Name) NCCL_ENTRY(nccl##Name, false)
#include "nccl/functions.def"

// Called on the first call of each function. Two threads may get here at the same time; both
// find the same target.
[[gnu::visibility("hidden"), gnu::used]] any_function isthmus_nccl_bind(jump_entry* entry) {
  any_function target = nullptr;
  if (entry->is_handled) {
    const engine_table* const engine = loaded_engine();
    target = engine == nullptr ? nullptr : engine->find(entry->name);
  }
  if (target == nullptr) target = real_function(entry->name);
  __atomic_store_n(&entry->target, target, __ATOMIC_RELEASE);
  return target;
}

// Returns the path of the program's own NCCL, for code that opens libnccl.so.2 and gets this library. Returns
// NULL if there is none.
[[gnu::visibility("default")]] const char* isthmus_nccl_library() { return real_library_path(); }
}

#if !defined(__x86_64__)
#error "the jumps are written for x86-64"
#endif
// Preserves all argument registers around the lookup. The stack is left as the caller set it up.
asm(R"(
  .text
  .type isthmus_nccl_first_call, @function
isthmus_nccl_first_call:
  pushq %rbp
  movq %rsp, %rbp
  andq $-16, %rsp
  subq $192, %rsp
  movq %rdi, 0(%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movq %rax, 48(%rsp)
  movaps %xmm0, 64(%rsp)
  movaps %xmm1, 80(%rsp)
  movaps %xmm2, 96(%rsp)
  movaps %xmm3, 112(%rsp)
  movaps %xmm4, 128(%rsp)
  movaps %xmm5, 144(%rsp)
  movaps %xmm6, 160(%rsp)
  movaps %xmm7, 176(%rsp)
  movq %r11, %rdi
  call isthmus_nccl_bind
  movq %rax, %r11
  movq 0(%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  movq 48(%rsp), %rax
  movaps 64(%rsp), %xmm0
  movaps 80(%rsp), %xmm1
  movaps 96(%rsp), %xmm2
  movaps 112(%rsp), %xmm3
  movaps 128(%rsp), %xmm4
  movaps 144(%rsp), %xmm5
  movaps 160(%rsp), %xmm6
  movaps 176(%rsp), %xmm7
  leave
  jmp *%r11
  .size isthmus_nccl_first_call, .-isthmus_nccl_first_call
)");

// The variant with a leading p, which profilers call, jumps to the same target.
#define NCCL_JUMP(function)                           \
  asm("  .globl " #function                           \
      "\n"                                            \
      "  .type " #function                            \
      ", @function\n"                                 \
      "  .globl p" #function                          \
      "\n"                                            \
      "  .type p" #function ", @function\n" #function \
      ":\n"                                           \
      "p" #function                                   \
      ":\n"                                           \
      "  movq isthmus_nccl_entry_" #function          \
      "(%rip), %r11\n"                                \
      "  testq %r11, %r11\n"                          \
      "  je 1f\n"                                     \
      "  jmp *%r11\n"                                 \
      "1: leaq isthmus_nccl_entry_" #function         \
      "(%rip), %r11\n"                                \
      "  jmp isthmus_nccl_first_call\n"               \
      "  .size " #function ", .-" #function           \
      "\n"                                            \
      "  .size p" #function ", .-p" #function "\n");
// clang-format on
#define NATIVE_FUNCTION(Name, ...) NCCL_JUMP(nccl##Name)
#define NATIVE_COLLECTIVE(Name, ...) NCCL_JUMP(nccl##Name) NCCL_JUMP(nccl##Name##Config)
#define NATIVE_MESSAGE(Name, ...) NCCL_JUMP(nccl##Name)
#define NATIVE_NAME(Name) NCCL_JUMP(nccl##Name)
#include "nccl/functions.def"
