#include "frontends/ggml/library.hpp"

#include <exception>
#include <memory>
#include <mutex>

#include "frontends/ggml/notice.hpp"

namespace isthmus::ggml {
namespace {

std::mutex mutex;
find_procedure* known_by = nullptr;
const library* the_one = nullptr;  // for the life of the process, as ggml itself

}  // namespace

library::library(find_procedure* procedures, const loaded_library& file)
    : procedure(procedures), m_layout(file) {}

// "" or the name that is missing.
std::string library::find_functions(const loaded_library& file) {
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

const library* library::known() noexcept {
  const std::lock_guard lock(mutex);
  return the_one;
}

const library* library::of(find_procedure* procedures) noexcept try {
  const std::lock_guard lock(mutex);
  if (known_by == procedures) return the_one;
  if (known_by != nullptr) {
    warn_once("a second copy of ggml in this process is left alone");
    return nullptr;
  }
  known_by = procedures;
  const auto file = loaded_library::around(reinterpret_cast<const void*>(procedures));
  std::unique_ptr<library> made(new library(procedures, file));
  const std::string missing = made->find_functions(file);
  const std::string& reason = missing.empty() ? made->m_layout.reason() : "it does not export " + missing;
  if (reason.empty())
    the_one = made.release();
  else
    warn_once("this ggml is left alone: " + reason);
  return the_one;
} catch (const std::exception&) {
  return nullptr;
}

}  // namespace isthmus::ggml
