#include "frontends/ggml/core.hpp"

#include <dlfcn.h>

#include <mutex>

#include "frontends/ggml/symbols.hpp"

namespace isthmus::ggml {
namespace {

// Found through this library's own run path, $ORIGIN. Never closed: kernels may be in flight at the end.
void* open_beside(const char* name, std::string& reason) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    reason = why != nullptr ? why : std::string(name) + " can't be loaded";
  }
  return library;
}

}  // namespace

const core* open_core(std::string& reason) {
  static std::mutex mutex;
  static core functions{};
  static bool is_open = false;
  const std::lock_guard lock(mutex);
  if (is_open) return &functions;
  void* library = open_beside(ISTHMUS_CORE_SONAME, reason);
  if (library == nullptr) return nullptr;
  const auto find = [library](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  is_open = find("isthmus_tensor_parallel_init", functions.init) &&
            find("isthmus_tensor_parallel_allreduce", functions.allreduce) &&
            find("isthmus_tensor_parallel_free", functions.free) &&
            find("isthmus_last_error", functions.last_error);
  if (!is_open) reason = ISTHMUS_CORE_SONAME " is of another version than this library";
  return is_open ? &functions : nullptr;
}

const isthmus_tensor_parallel_engine* open_sycl_engine(std::string& reason) {
  const std::string runtime = ISTHMUS_SYCL_SONAME;
  if (runtime.empty()) {
    reason = "Isthmus was built without SYCL";
    return nullptr;
  }
  // Two SYCL runtimes in one process know nothing of each other's queues.
  if (!loaded_library(runtime.c_str())) {
    reason = "the program uses another SYCL runtime than " + runtime + ", with which Isthmus was built";
    return nullptr;
  }
  void* library = open_beside(ISTHMUS_SYCL_ENGINE_FILE, reason);
  if (library == nullptr) return nullptr;
  using entry_point = const isthmus_tensor_parallel_engine* (*)();
  const auto entry = reinterpret_cast<entry_point>(dlsym(library, ISTHMUS_TENSOR_PARALLEL_ENGINE_SYMBOL));
  if (entry == nullptr) reason = ISTHMUS_SYCL_ENGINE_FILE " has no engine";
  return entry == nullptr ? nullptr : entry();
}

}  // namespace isthmus::ggml
