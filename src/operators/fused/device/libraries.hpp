// Driver and BLAS library of a device plan, loaded at run time.
#pragma once

#include "core/communicator.hpp"
#include "device/driver.hpp"
#include "operators/fused/device/blaslt.hpp"

namespace isthmus::fused {

struct device_libraries {
  device_driver& driver;
  const blaslt& blas;
};

// Collective, for CUDA and HIP.
// Errors: all ranks throw error (UNSUPPORTED) if a library is missing on any rank.
device_libraries find_device_libraries(communicator& owner);

}  // namespace isthmus::fused
