// Misuse that must not compile; CASE 0 is the correct call. The build compiles each case by itself.
#include <isthmus/sycl.hpp>

struct particle {
  double x;
  int charge;
};

void misuse(const isthmus::communicator& ranks, sycl::queue& queue, float* floats, const float* constants,
            int* ints, void* untyped, particle* particles) {
#if CASE == 0
  ranks.allreduce(queue, constants, floats, 1);
  ranks.broadcast(queue, particles, 1, 0);
  ranks.allreduce(queue, isthmus::as_datatype(isthmus::datatype::float32, untyped), 1);
  ranks.reduce(queue, ints, nullptr, 1, isthmus::reduction_op::sum, 0);
#elif CASE == 1  // send and receive buffers of different elements
  ranks.allreduce(queue, ints, floats, 1);
#elif CASE == 2  // a receive buffer that is const
  ranks.allreduce(queue, floats, constants, 1);
#elif CASE == 3  // elements that THE TABLE cannot combine
  ranks.allreduce(queue, particles, particles, 1);
#elif CASE == 4  // a void pointer says nothing about its elements
  ranks.broadcast(queue, untyped, 1, 0);
#elif CASE == 5  // the C enumeration is not the C++ one
  ranks.allreduce(queue, floats, floats, 1, ISTHMUS_SUM);
#elif CASE == 6  // communicators are not copied
  isthmus::communicator copy = ranks;
#elif CASE == 7  // an array: through a reference to const it cannot say whether it may be written
  float values[8] = {};
  ranks.allreduce(queue, values, values, 8);
#endif
  (void)floats, (void)constants, (void)ints, (void)untyped, (void)particles;
}
