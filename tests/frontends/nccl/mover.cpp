// A backend of all collectives on CUDA's streams, for tests: the one for NCCL under another name, which rules
// can give calls to that the program's own NCCL must then not get. MOVER_LIBRARY names the library that works
// for it.
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
