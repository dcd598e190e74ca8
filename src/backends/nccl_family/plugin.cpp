// The difference between libisthmus_nccl.so, the plug-in for NVIDIA devices, and libisthmus_rccl.so, the one for AMD
// devices.
#include "backends/nccl_family/nccl_state.hpp"

const isthmus::nccl_family::vendor_traits& isthmus::nccl_family::plugin_traits = ISTHMUS_NCCL_TRAITS;
