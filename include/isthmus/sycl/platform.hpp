// Maps a sycl::device to the platform and ordinal of the core.
#ifndef ISTHMUS_SYCL_PLATFORM_HPP
#define ISTHMUS_SYCL_PLATFORM_HPP

#include <isthmus/tools.h>

#include <algorithm>
#include <isthmus/error.hpp>
#include <isthmus/sycl/features.hpp>
#include <string>

namespace isthmus::detail {

/// Returns the platform that [sycl_backends] of the configuration assigns to a backend, by name or number;
/// std::nullopt if it has no entry.
inline std::optional<isthmus_platform> mapped_platform(sycl::backend backend, const char* config_path) {
  isthmus_platform platform = ISTHMUS_PLATFORM_HOST;
  int is_mapped = 0;
  check(isthmus_sycl_backend_platform(config_path, backend_name(backend).c_str(), static_cast<int>(backend),
                                      &platform, &is_mapped));
  if (is_mapped == 0) return std::nullopt;
  return platform;
}

// Returns the position of a device in the list of its SYCL platform, which serves as ordinal if the native API
// has no device numbers.
inline int position_in_platform(const sycl::device& device) {
  const auto devices = device.get_platform().get_devices();
  const auto position = std::find(devices.begin(), devices.end(), device);
  return position == devices.end() ? 0 : static_cast<int>(position - devices.begin());
}

// Returns the core's device for a SYCL device. CPU devices, including sub-devices, belong to the host platform,
// because their memory is host memory. For other devices, the configuration overrides the built-in map. A new
// SYCL implementation therefore works without a new release of Isthmus.
inline isthmus_device native_device(const sycl::device& device, const char* config_path) {
  if (device.is_cpu()) return {ISTHMUS_PLATFORM_HOST, 0};
  const sycl::backend backend = device.get_backend();
  if (const auto configured_platform = mapped_platform(backend, config_path)) {
    int ordinal = position_in_platform(device);
    if (*configured_platform == known_platform(backend)) {
      visit_native(*configured_platform, [&](auto native) { ordinal = native.ordinal(device); });
    }
    return {*configured_platform, ordinal};
  }
  const auto default_platform = known_platform(backend);
  if (!default_platform) {
    const std::string number = std::to_string(static_cast<int>(backend));
    throw make_exception(
        {.status = ISTHMUS_ERROR_CONFIG,
         .message = "device '" + device.get_info<sycl::info::device::name>() + "' has sycl::backend " + number +
                    ", which maps to no known platform",
         .hint = "add it to the configuration: [sycl_backends] \"" + number + "\" = \"cuda\""});
  }
  int ordinal = position_in_platform(device);
  visit_native(*default_platform, [&](auto native) { ordinal = native.ordinal(device); });
  return {*default_platform, ordinal};
}

}  // namespace isthmus::detail

#endif
