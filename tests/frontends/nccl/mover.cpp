// A test backend with all collectives on CUDA streams: the NCCL backend under another name. Rules can assign
// calls to it that the program's own NCCL must then not receive. MOVER_LIBRARY names the library that it loads.
#include "backends/nccl_family/nccl_backend.hpp"

namespace {

struct mover_traits : isthmus::nccl_family::nccl_traits {
  static constexpr const char* name = "mover";
  static isthmus::library_search_request library_search() {
    isthmus::library_search_request search;
    search.variable = "MOVER_LIBRARY";
    search.names = {"no_mover.so"};
    return search;
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  return isthmus::nccl_family::nccl_backend<mover_traits>::get();
}
