#include "backends/p2p/peer_access.hpp"

#include "backends/p2p/device.hpp"
#include "device/libraries.hpp"

#if !ISTHMUS_P2P_HIP
#include <cuda.h>
#include <dlfcn.h>
#endif

namespace isthmus::p2p {

#if ISTHMUS_P2P_HIP

// HIP has no such query, so results are sent through the inboxes.
bool is_writable_by(const void*, int, int) { return false; }

#else

namespace {

// Functions of the CUDA driver, which the CUDA runtime has already loaded. The runtime does not
// offer these queries.
struct driver_functions {
  void* library = dlopen(cuda_driver_name, RTLD_LAZY | RTLD_NOLOAD);
  decltype(&cuPointerGetAttributes) attributes =
      find<decltype(&cuPointerGetAttributes)>("cuPointerGetAttributes");
  decltype(&cuMemGetAccess) access = find<decltype(&cuMemGetAccess)>("cuMemGetAccess");

  template <typename Function>
  Function find(const char* name) const {
    return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
  }
};

bool is_plain_memory_of(const driver_functions& functions, CUdeviceptr address, int owner) {
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  int is_plain = 0, ordinal = -1;
  void* values[] = {&is_plain, &ordinal};
  return functions.attributes(2, attributes, values, address) == CUDA_SUCCESS && is_plain != 0 &&
         ordinal == owner;
}

}  // namespace

bool is_writable_by(const void* pointer, int owner, int peer) {
  static const driver_functions functions;
  if (functions.attributes == nullptr || functions.access == nullptr) return false;
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  if (is_plain_memory_of(functions, address, owner)) return true;
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = peer;
  unsigned long long flags = 0;
  return functions.access(&flags, &location, address) == CUDA_SUCCESS &&
         (flags & CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

#endif

}  // namespace isthmus::p2p
