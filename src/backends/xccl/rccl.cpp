// libisthmus_rccl.so: the plug-in for AMD devices.
#include "xccl_backend.hpp"

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  return isthmus::xccl::nccl_backend<isthmus::xccl::rccl_traits>::get();
}
