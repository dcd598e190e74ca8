// libisthmus_ggml_syclN.so: the engine for SYCL queues. It is a separate library so that nothing else needs
// a SYCL runtime.
#include <isthmus/sycl/tensor_parallel.hpp>

extern "C" [[gnu::visibility("default")]] const isthmus_tensor_parallel_engine*
isthmus_tensor_parallel_engine_v1() {
  return isthmus::sycl_tensor_parallel_engine();
}
