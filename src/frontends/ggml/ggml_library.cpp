#include "frontends/ggml/ggml_library.hpp"

#include <dlfcn.h>

#include <exception>
#include <memory>
#include <mutex>

#include "frontends/ggml/log.hpp"

namespace isthmus::ggml {

loaded_library::loaded_library(const char* soname)
    : m_handle(soname == nullptr ? nullptr : preload::find_loaded(soname)) {}

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

namespace {

std::mutex mutex;
proc_address_function* known_get_proc_address = nullptr;
const ggml_library* instance = nullptr;  // lives as long as the process, like ggml itself

}  // namespace

ggml_library::ggml_library(proc_address_function* look_up, const loaded_library& file)
    : get_proc_address(look_up), m_layout(file) {}

// Returns "" or the name of a missing function.
std::string ggml_library::find_functions(const loaded_library& file) {
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    if (!file.find(name, function) && missing.empty()) missing = name;
  };
  find("ggml_backend_get_device", get_device);
  find("ggml_backend_synchronize", synchronize);
  find("ggml_backend_dev_backend_reg", registry_of);
  find("ggml_backend_reg_name", registry_name);
  find("ggml_backend_dev_name", device_name);
  find("ggml_backend_dev_type", device_type);
  find("ggml_backend_event_new", make_event);
  find("ggml_backend_event_free", free_event);
  find("ggml_backend_event_record", record_event);
  find("ggml_backend_event_synchronize", synchronize_event);
  find("ggml_nelements", count_elements);
  find("ggml_is_contiguously_allocated", is_contiguous);
  find("ggml_get_data", data);
  return missing;
}

const ggml_library* ggml_library::current() noexcept {
  const std::lock_guard lock(mutex);
  return instance;
}

const ggml_library* ggml_library::find(proc_address_function* look_up) noexcept try {
  const std::lock_guard lock(mutex);
  if (known_get_proc_address == look_up) return instance;
  if (known_get_proc_address != nullptr) {
    warn_once("a second copy of ggml in this process is not used");
    return nullptr;
  }
  known_get_proc_address = look_up;
  const auto file = loaded_library::containing(reinterpret_cast<const void*>(look_up));
  std::unique_ptr<ggml_library> new_library(new ggml_library(look_up, file));
  const std::string missing = new_library->find_functions(file);
  const std::string& reason =
      missing.empty() ? new_library->m_layout.reason() : "it does not export " + missing;
  if (reason.empty())
    instance = new_library.release();
  else
    warn_once("this ggml is not used: " + reason);
  return instance;
} catch (const std::exception&) {
  return nullptr;
}

}  // namespace isthmus::ggml
