// libisthmus_rccl.so: the RCCL plug-in for AMD devices.
#include "nccl_backend.hpp"

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  return isthmus::nccl_family::nccl_backend<isthmus::nccl_family::rccl_traits>::get();
}
