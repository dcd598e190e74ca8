#include "frontends/ggml/symbols.hpp"

#include <dlfcn.h>

namespace isthmus::ggml {

loaded_library::loaded_library(const char* soname)
    : m_handle(soname == nullptr ? nullptr : dlopen(soname, RTLD_LAZY | RTLD_NOLOAD)) {}

loaded_library loaded_library::containing(const void* address) {
  Dl_info info{};
  return loaded_library(dladdr(address, &info) != 0 ? info.dli_fname : nullptr);
}

void* loaded_library::find(const char* name) const {
  return m_handle == nullptr ? nullptr : dlsym(m_handle, name);
}

void* next_definition(const char* name, const void* caller, const void* own_definition) {
  // Search the caller's library first: if ggml was loaded by dlopen (llama-cpp-python), it is not in the global
  // scope of the process. The main program has no such handle, but its dependencies are in the global scope.
  void* definition = loaded_library::containing(caller).find(name);
  if (definition == nullptr || definition == own_definition) definition = dlsym(RTLD_NEXT, name);
  return definition == own_definition ? nullptr : definition;
}

}  // namespace isthmus::ggml
