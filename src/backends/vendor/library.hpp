// The native library and device runtime of one family, loaded once per process.
#pragma once

#include <isthmus/backend.h>

#include <memory>
#include <mutex>
#include <string>

#include "device/runtime.hpp"
#include "native_api.hpp"

namespace isthmus::xccl {

// Reads the option `key` of this backend; null when it is not set.
inline const char* option_of(const isthmus_backend_context& context, const char* key) {
  return context.option != nullptr ? context.option(context.runtime, key) : nullptr;
}

template <typename Traits>
struct vendor_library {
  native_functions native;
  typename Traits::entry_points own;  // functions whose shape differs between the families
  device_runtime device;
  int version = 0;
  std::string path, text;

  // The process's library, loaded at the first call that succeeds; null and `reason` when this machine
  // has none that will do. A process has one: group calls name no communicator.
  static vendor_library* get(const isthmus_backend_context& context, std::string& reason);
  // What get() has loaded so far, or null.
  static vendor_library* loaded() { return slot().get(); }

 private:
  static std::unique_ptr<vendor_library>& slot() {
    static std::unique_ptr<vendor_library> library;
    return library;
  }
  std::string load(const isthmus_backend_context& context);
};

template <typename Traits>
vendor_library<Traits>* vendor_library<Traits>::get(const isthmus_backend_context& context,
                                                    std::string& reason) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto library = std::make_unique<vendor_library>();
  if (slot() == nullptr) {
    reason = library->load(context);
    if (reason.empty()) slot() = std::move(library);
  }
  return slot().get();
}

template <typename Traits>
std::string vendor_library<Traits>::load(const isthmus_backend_context& context) {
  std::string reason;
  library_search_request search = Traits::library_search();
  search.option = option_of(context, "library");
  search.site_packages = option_of(context, "site_packages");
  const dynamic_library library = dynamic_library::open(search, reason);
  if (!library) return std::string("no ") + Traits::title + " library could be loaded: " + reason;
  path = library.path();

  std::string missing = native.load(library, Traits::symbol_prefix, Traits::has_abort);
  if (missing.empty()) missing = own.load(library);
  // The version is asked first where it can be: an old library is the usual cause of a missing function.
  if (native.get_version == nullptr || native.get_version(&version) != native_success)
    return path + " does not look like " + Traits::title + ": no usable " + Traits::symbol_prefix +
           "GetVersion";
  text = Traits::version_text(version);
  if (version < Traits::minimum_version)
    return path + " is " + Traits::title + " " + text + "; " + Traits::version_text(Traits::minimum_version) +
           " or newer is needed";
  if (!missing.empty()) return path + " (" + Traits::title + " " + text + ") lacks " + missing;

  return device.load(Traits::platform, option_of(context, "runtime_library"), search.site_packages);
}

}  // namespace isthmus::xccl
