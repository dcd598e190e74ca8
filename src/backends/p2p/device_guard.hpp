// Makes a device current for a scope, using the runtime with which the plug-in is linked.
#pragma once

#include "backends/p2p/device.hpp"
#include "device/scoped_device.hpp"

namespace isthmus::p2p {

struct linked_runtime {
  static gpu_error get_device(int* device) { return gpu_get_device(device); }
  static gpu_error set_device(int device) { return gpu_set_device(device); }
};
inline constexpr linked_runtime linked{};

class device_guard : public scoped_device<linked_runtime> {
 public:
  explicit device_guard(int device) : scoped_device(linked, device) {}
};

}  // namespace isthmus::p2p
