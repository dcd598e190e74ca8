// libisthmus_nccl.so, the plug-in for NVIDIA devices, and libisthmus_rccl.so, the one for AMD devices.
#include "nccl_backend.hpp"

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  return isthmus::nccl_family::nccl_backend<isthmus::nccl_family::ISTHMUS_NCCL_TRAITS>::get();
}
