// From a sycl::device to the platform and ordinal that the core knows.
#ifndef ISTHMUS_SYCL_PLATFORM_HPP
#define ISTHMUS_SYCL_PLATFORM_HPP

#include <algorithm>
#include <isthmus/error.hpp>
#include <isthmus/sycl/features.hpp>
#include <string>

namespace isthmus::detail {

/// The platform that [sycl_backends] of the configuration gives to a backend, by name or number; none where it
/// does not mention it.
inline std::optional<isthmus_platform> mapped_platform(sycl::backend backend, const char* config_path) {
  isthmus_platform platform = ISTHMUS_PLATFORM_HOST;
  int is_mapped = 0;
  check(isthmus_sycl_backend_platform(config_path, backend_name(backend).c_str(), static_cast<int>(backend),
                                      &platform, &is_mapped));
  if (is_mapped == 0) return std::nullopt;
  return platform;
}

// The position among the GPUs (or accelerators) of its SYCL platform: what an index means where the
// native API has no numbers of its own.
inline int position_in_platform(const sycl::device& device) {
  const auto devices = device.get_platform().get_devices();
  const auto position = std::find(devices.begin(), devices.end(), device);
  return position == devices.end() ? 0 : static_cast<int>(position - devices.begin());
}

// CPU devices, sub-devices included, are the host whatever drives them: their memory is the host's. For
// other devices the configuration's map wins over what is known here, so that a new SYCL implementation
// needs no new release.
inline isthmus_device native_device(const sycl::device& device, const char* config_path) {
  if (device.is_cpu()) return {ISTHMUS_PLATFORM_HOST, 0};
  const sycl::backend backend = device.get_backend();
  if (const auto mapped = mapped_platform(backend, config_path)) {
    int ordinal = position_in_platform(device);
    if (*mapped == known_platform(backend)) {
      visit_native(*mapped, [&](auto native) { ordinal = native.ordinal(device); });
    }
    return {*mapped, ordinal};
  }
  const auto default_platform = known_platform(backend);
  if (!default_platform) {
    const std::string number = std::to_string(static_cast<int>(backend));
    throw make_exception(
        {.status = ISTHMUS_ERROR_CONFIG,
         .message = "device '" + device.get_info<sycl::info::device::name>() + "' has sycl::backend " + number +
                    ", whose platform is not known",
         .hint = "map it in the configuration: [sycl_backends] \"" + number + "\" = \"cuda\""});
  }
  int ordinal = position_in_platform(device);
  visit_native(*default_platform, [&](auto native) { ordinal = native.ordinal(device); });
  return {*default_platform, ordinal};
}

}  // namespace isthmus::detail

#endif
