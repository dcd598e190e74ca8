// What a device plan runs on, found at run time.
#pragma single_us

#include "core/communicator.hpp"
#include "device/driver.hpp"
#include "operators/fused/device/blaslt.hpp"

namespace isthmus::fused {

struct device_libraries {
  device_driver& driver;
  const blaslt& blas;
};

// For CUDA and HIP. Collective: all ranks throw error (UNSUPPORTED) where one lacks something.
device_libraries find_device_libraries(communicator& owner);

}  // namespace isthmus::fused
