// Prints the SYCL devices of this environment as a JSON array of objects. `isthmus info` runs this program in
// the environment that `isthmus run` provides. Exit code 1: the SYCL runtime failed.
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <sycl/sycl.hpp>

namespace {

const char* kind_of(const sycl::device& device) {
  switch (device.get_info<sycl::info::device::device_type>()) {
    case sycl::info::device_type::cpu: return "cpu";
    case sycl::info::device_type::gpu: return "gpu";
    case sycl::info::device_type::accelerator: return "accelerator";
    default: return "other";
  }
}

}  // namespace

int main() {
  try {
    nlohmann::json devices = nlohmann::json::array();
    for (const sycl::device& device : sycl::device::get_devices()) {
      devices.push_back({{"name", device.get_info<sycl::info::device::name>()},
                         {"kind", kind_of(device)},
                         {"platform", device.get_platform().get_info<sycl::info::platform::name>()},
                         {"driver", device.get_info<sycl::info::device::driver_version>()},
                         {"compute_units", device.get_info<sycl::info::device::max_compute_units>()}});
    }
    std::puts(devices.dump().c_str());
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
