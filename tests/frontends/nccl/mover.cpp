// A test backend with all collectives on CUDA streams: the NCCL backend under another name. Rules can assign
// calls to it that the program's own NCCL must then not receive. MOVER_LIBRARY names the library that it loads.
#include "backends/nccl_family/nccl_state.hpp"

namespace {

const isthmus::nccl_family::vendor_traits mover_traits = [] {
  isthmus::nccl_family::vendor_traits traits = isthmus::nccl_family::nccl_traits;
  traits.name = "mover";
  traits.library_search = {};
  traits.library_search.variable = "MOVER_LIBRARY";
  traits.library_search.names = {"no_mover.so"};
  return traits;
}();

}  // namespace

const isthmus::nccl_family::vendor_traits& isthmus::nccl_family::plugin_traits = mover_traits;
