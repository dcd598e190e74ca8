// libisthmus_nccl_preload.so: intercepts NCCL in an unmodified program. It is preloaded or installed in NCCL's
// place and exports all of NCCL's functions. Each function is a jump, either to the program's own NCCL or to
// the engine (libisthmus_nccl_engine.so) if Isthmus can handle the function. The target is looked up when the
// function is first called.
//
// The jumps preserve all arguments and results, including structures passed by value, so they work with every
// NCCL version that keeps these names. Processes that the program starts load this library as well. For this
// reason it depends only on the C library and opens nothing before NCCL is called.
#include <dlfcn.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "frontends/nccl/engine_abi.hpp"
#include "frontends/nccl/real_library.hpp"
#include "frontends/preload/engine_loader.hpp"

using namespace isthmus::nccl_shim;

namespace {

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

constexpr isthmus::preload::preload_labels labels = {"nccl", "NCCL", "the engine"};

const engine_table* open_engine() {
  const char* const setting = std::getenv("ISTHMUS_NCCL");
  if (setting != nullptr && (std::strcmp(setting, "off") == 0 || std::strcmp(setting, "0") == 0))
    return nullptr;
  if (real_library() == nullptr) return nullptr;
  using entry_point = const engine_table*(const engine_host*);
  static const engine_host host = {sizeof(engine_host), find_real_or_null};
  return isthmus::preload::open_engine<engine_table, entry_point>(
      labels, reinterpret_cast<void*>(&open_engine), "libisthmus_nccl_engine.so", engine_symbol,
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
