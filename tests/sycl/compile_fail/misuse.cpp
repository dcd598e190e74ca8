// Misuse that must not compile, each line with its own error. With CORRECT, the use that must compile.
#ifdef WITHOUT_EXTENSIONS  // as an implementation that has only the SYCL 2020 standard
#include <sycl/sycl.hpp>
#undef SYCL_IMPLEMENTATION_ONEAPI
#undef SYCL_EXT_ONEAPI_FREE_FUNCTION_QUERIES
#undef SYCL_EXT_ONEAPI_BFLOAT16
#undef SYCL_EXT_CODEPLAY_ENQUEUE_NATIVE_COMMAND
#undef SYCL_EXT_ONEAPI_ENQUEUE_NATIVE_COMMAND
#undef SYCL_EXT_ONEAPI_ENQUEUE_FUNCTIONS
#undef SYCL_EXT_ONEAPI_ENQUEUE_BARRIER
#undef SYCL_EXT_ONEAPI_PEER_ACCESS
#endif

#include <isthmus/sycl.hpp>
#include <isthmus/sycl/fused.hpp>
#include <isthmus/sycl/memory_copy.hpp>

struct particle {
  double x;
  int charge;
};

void misuse(const isthmus::communicator& ranks, sycl::queue& queue, float* floats, const float* constants,
            int* ints, void* void_pointer, particle* particles) {
#ifdef CORRECT
  ranks.allreduce(queue, constants, floats, 1);
  ranks.broadcast(queue, particles, 1, 0);
  ranks.allreduce(queue, isthmus::as_datatype(isthmus::datatype::float32, void_pointer), 1);
  ranks.reduce(queue, ints, nullptr, 1, isthmus::reduction_op::sum, 0);
#else
  ranks.allreduce(queue, ints, floats, 1);                 // different element types in send and receive buffer
  ranks.allreduce(queue, floats, constants, 1);            // const receive buffer
  ranks.allreduce(queue, particles, particles, 1);         // elements that Isthmus cannot reduce
  ranks.broadcast(queue, void_pointer, 1, 0);              // void pointer without a datatype
  ranks.allreduce(queue, floats, floats, 1, ISTHMUS_SUM);  // enumerator of the C API
  float values[8] = {};
  ranks.allreduce(queue, values, values, 8);  // array, whose constness is lost in a reference to const
  isthmus::communicator copy = ranks;         // copy of a communicator
#endif
  (void)floats, (void)constants, (void)ints, (void)void_pointer, (void)particles;
}
