// The native library and device runtime of one vendor, loaded once per process.
#pragma once

#include <isthmus/backend.h>

#include <memory>
#include <mutex>
#include <string>

#include "backends/nccl_family/collectives.hpp"
#include "base/dynamic_library.hpp"
#include "device/gpu/functions.hpp"

namespace isthmus::nccl_family {

// Returns the value of the backend option `key`; null if it is not set.
inline const char* option_of(const isthmus_backend_context& context, const char* key) {
  return context.option != nullptr ? context.option(context.runtime, key) : nullptr;
}

template <typename Traits>
struct native_library {
  native_functions functions;
  device_runtime device;
  int version = 0;
  std::string path, version_text;

  // Returns the library of this process. The first successful call loads it. Returns null and sets
  // `reason` if this machine has no usable library. There is one library per process because native group
  // calls take no communicator.
  static native_library* get(const isthmus_backend_context& context, std::string& reason);
  // Returns the library that get() has loaded, or null.
  static native_library* current() { return instance().get(); }

 private:
  static std::unique_ptr<native_library>& instance() {
    static std::unique_ptr<native_library> library;
    return library;
  }
  std::string load(const isthmus_backend_context& context);
};

template <typename Traits>
native_library<Traits>* native_library<Traits>::get(const isthmus_backend_context& context,
                                                    std::string& reason) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto library = std::make_unique<native_library>();
  if (instance() == nullptr) {
    reason = library->load(context);
    if (reason.empty()) instance() = std::move(library);
  }
  return instance().get();
}

template <typename Traits>
std::string native_library<Traits>::load(const isthmus_backend_context& context) {
  std::string reason;
  library_search_request search = Traits::library_search();
  search.option = option_of(context, "library");
  search.site_packages = option_of(context, "site_packages");
  const dynamic_library library = dynamic_library::open(search, reason);
  if (!library) return std::string("no ") + Traits::display_name + " library could be loaded: " + reason;
  path = library.path();

  const std::string missing =
      functions.load("nccl", true, [&](const std::string& name) { return library.symbol(name); });
  // Check the version first: a missing function usually means that the library is too old.
  if (functions.get_version == nullptr || functions.get_version(&version) != native_success)
    return path + " is not " + Traits::display_name + ": it has no usable " + Traits::symbol_prefix +
           "GetVersion";
  version_text = format_version(version);
  if (version < Traits::minimum_version)
    return path + " is " + Traits::display_name + " " + version_text + "; " +
           format_version(Traits::minimum_version) + " or newer is needed";
  if (!missing.empty()) return path + " (" + Traits::display_name + " " + version_text + ") lacks " + missing;

  return device.load(Traits::platform, option_of(context, "runtime_library"), search.site_packages);
}

}  // namespace isthmus::nccl_family
