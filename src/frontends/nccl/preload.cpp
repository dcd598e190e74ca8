// libisthmus_nccl_preload.so: stands before NCCL, or in its place, in a program that was not changed for it. It
// has all of NCCL's names. Each is one jump to where it leads: to the program's own NCCL, or to the engine
// (libisthmus_nccl_engine.so) for those that Isthmus may take. Where that is is looked up at a name's first
// call.
//
// The jumps know no arguments and no results, some of which are structures by value, so they serve every
// version of NCCL that keeps its names. Processes that the program starts load this library, too: it needs
// nothing but the C library, and opens nothing before NCCL is called.
#include <dlfcn.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "frontends/nccl/engine_abi.hpp"
#include "frontends/nccl/real_library.hpp"
#include "frontends/preload/engine_loader.hpp"

using namespace isthmus::nccl_shim;

namespace {

constexpr int system_error = 2, invalid_usage = 5;  // ncclSystemError, ncclInvalidUsage

// What a name leads to. The jumps read `target`, so it comes first.
struct jump_entry {
  any_function target;
  const char* name;
  bool is_handled;
};

int fail_without_nccl() { return system_error; }
int fail_missing_function() { return invalid_usage; }
// Programs print these two when a call has failed.
const char* text_for_no_nccl() { return "Isthmus found no NCCL to pass the call to"; }
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
  if (setting != nullptr && (std::strcmp(setting, "off") == 0 || std::strcmp(setting, "0") == 0)) return nullptr;
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
// Of the jumps below alone.
#define NCCL_ENTRY(function, is_handled) \
  [[gnu::visibility("hidden"), gnu::used]] jump_entry isthmus_nccl_entry_##function = {nullptr, #function, is_handled};
#define NCCL_PASSED_THROUGH(function) NCCL_ENTRY(function, false)
#define NCCL_HANDLED(function) NCCL_ENTRY(function, true)
#include "frontends/nccl/names.def"

// The first call of a name comes here. Two threads may do this at once: both find the same.
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

// The program's own NCCL, for whoever looks for libnccl.so.2 and finds this library by that name; NULL: none.
[[gnu::visibility("default")]] const char* isthmus_nccl_library() { return real_library_path(); }
}

#if !defined(__x86_64__)
#error "the jumps are written for x86-64"
#endif
// clang-format off
// All registers in which arguments may come are kept around the binding; the stack is the caller's as it was.
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

// The name with a p before it, which profilers call, leads to the same place.
#define NCCL_JUMP(function)                              \
  asm("  .globl " #function "\n"                         \
      "  .type " #function ", @function\n"               \
      "  .globl p" #function "\n"                        \
      "  .type p" #function ", @function\n"              \
      #function ":\n"                                    \
      "p" #function ":\n"                                \
      "  movq isthmus_nccl_entry_" #function "(%rip), %r11\n" \
      "  testq %r11, %r11\n"                             \
      "  je 1f\n"                                        \
      "  jmp *%r11\n"                                    \
      "1: leaq isthmus_nccl_entry_" #function "(%rip), %r11\n" \
      "  jmp isthmus_nccl_first_call\n"                  \
      "  .size " #function ", .-" #function "\n"         \
      "  .size p" #function ", .-p" #function "\n");
// clang-format on
#define NCCL_PASSED_THROUGH(function) NCCL_JUMP(function)
#define NCCL_HANDLED(function) NCCL_JUMP(function)
#include "frontends/nccl/names.def"
