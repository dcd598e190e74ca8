// Misuse that must not compile. CASE 0 is the correct use. The build compiles each case separately.
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
#if CASE == 0
  ranks.allreduce(queue, constants, floats, 1);
  ranks.broadcast(queue, particles, 1, 0);
  ranks.allreduce(queue, isthmus::as_datatype(isthmus::datatype::float32, void_pointer), 1);
  ranks.reduce(queue, ints, nullptr, 1, isthmus::reduction_op::sum, 0);
#elif CASE == 1  // different element types in send and receive buffer
  ranks.allreduce(queue, ints, floats, 1);
#elif CASE == 2  // const receive buffer
  ranks.allreduce(queue, floats, constants, 1);
#elif CASE == 3  // elements that Isthmus cannot reduce
  ranks.allreduce(queue, particles, particles, 1);
#elif CASE == 4  // void pointer without a datatype
  ranks.broadcast(queue, void_pointer, 1, 0);
#elif CASE == 5  // enumerator of the C API
  ranks.allreduce(queue, floats, floats, 1, ISTHMUS_SUM);
#elif CASE == 6  // copy of a communicator
  isthmus::communicator copy = ranks;
#elif CASE == 7  // array, whose constness is lost in a reference to const
  float values[8] = {};
  ranks.allreduce(queue, values, values, 8);
#endif
  (void)floats, (void)constants, (void)ints, (void)void_pointer, (void)particles;
}
