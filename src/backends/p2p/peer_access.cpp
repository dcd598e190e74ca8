#include "backends/p2p/peer_access.hpp"

#include "backends/p2p/device.hpp"

namespace isthmus::p2p {
namespace {

// The CUDA driver, which the CUDA runtime has already loaded. The runtime does not offer these queries.
struct driver_functions : gpu::gpu_functions {
  driver_functions() {
    if (const auto driver = dynamic_library::find_loaded(gpu::cuda_driver_name); driver)
      (void)look_up(gpu::vendor_library::cuda_driver, driver);
  }
};

bool is_plain_memory_of(const driver_functions& functions, const void* pointer, int owner) {
  int attributes[] = {gpu::attribute_is_ipc_capable, gpu::attribute_ordinal};
  int is_plain = 0, ordinal = -1;
  void* values[] = {&is_plain, &ordinal};
  return functions.get_pointer_attributes(2, attributes, values, pointer) == gpu::success && is_plain != 0 &&
         ordinal == owner;
}

}  // namespace

bool is_writable_by(const void* pointer, int owner, int peer) {
  if (ISTHMUS_P2P_HIP) return false;  // HIP has no such query, so results are sent through the inboxes
  static const driver_functions functions;
  if (functions.get_pointer_attributes == nullptr || functions.mem_get_access == nullptr) return false;
  if (is_plain_memory_of(functions, pointer, owner)) return true;
  const gpu::memory_location location{gpu::location_device, peer};
  unsigned long long flags = 0;
  return functions.mem_get_access(&flags, &location, pointer) == gpu::success &&
         (flags & gpu::access_read_write) == gpu::access_read_write;
}

}  // namespace isthmus::p2p
