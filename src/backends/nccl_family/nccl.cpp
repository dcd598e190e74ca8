// libisthmus_nccl.so: the NCCL plug-in for NVIDIA devices.
#include "nccl_backend.hpp"

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  return isthmus::nccl_family::nccl_backend<isthmus::nccl_family::nccl_traits>::get();
}
