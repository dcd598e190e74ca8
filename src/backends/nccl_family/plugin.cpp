// Defines whether the plug-in is libisthmus_nccl.so, for NVIDIA devices, or libisthmus_rccl.so, for AMD devices.
#include "backends/nccl_family/nccl_state.hpp"

const isthmus::nccl_family::vendor_traits& isthmus::nccl_family::plugin_traits = ISTHMUS_NCCL_TRAITS;
