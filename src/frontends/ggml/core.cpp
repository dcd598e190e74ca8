#include "frontends/ggml/core.hpp"

#include <dlfcn.h>

#include <mutex>

namespace isthmus::ggml {
// dlopen finds it through this library's run path, $ORIGIN.
void* open_from_own_folder(const char* name, std::string& reason) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* message = dlerror();
    reason = message != nullptr ? message : std::string(name) + " cannot be loaded";
  }
  return library;
}

const core_functions* open_core(std::string& reason) {
  static std::mutex mutex;
  static core_functions functions{};
  static bool is_open = false;
  const std::lock_guard lock(mutex);
  if (is_open) return &functions;
  void* library = open_from_own_folder(ISTHMUS_CORE_SONAME, reason);
  if (library == nullptr) return nullptr;
  const auto find = [library](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  is_open = find("isthmus_tensor_parallel_create", functions.create) &&
            find("isthmus_tensor_parallel_allreduce", functions.allreduce) &&
            find("isthmus_tensor_parallel_destroy", functions.destroy) &&
            find("isthmus_last_error", functions.last_error);
  if (!is_open) reason = ISTHMUS_CORE_SONAME " has a different version than this library";
  return is_open ? &functions : nullptr;
}

}  // namespace isthmus::ggml
