// "cpu N" of the probe with machine.cpp: the shares of the CPU. SYCL0 is the CPU itself.
#include <string>

#include "../llama/cpu_devices.hpp"

std::vector<ggml_backend_dev_t> make_cpu_devices(std::size_t n) {
  std::vector<ggml_backend_dev_t> devices_found;
  for (std::size_t i = 1; i <= n; ++i)
    if (ggml_backend_dev_t device = ggml_backend_dev_by_name(("SYCL" + std::to_string(i)).c_str()))
      devices_found.push_back(device);
  return devices_found;
}
