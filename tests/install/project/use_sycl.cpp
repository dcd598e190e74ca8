// sycl.hpp of an installed Isthmus with the SYCL implementation of the user.
#include <cstdio>
#include <isthmus/sycl.hpp>
#include <vector>

int main() {
  sycl::queue queue;
  const std::vector<isthmus::communicator> ranks = isthmus::communicator::create_all({queue.get_device()});
  int* const value = sycl::malloc_shared<int>(1, queue);
  *value = 7;
  ranks[0].allreduce(queue, value, 1, isthmus::reduction_op::sum).wait();
  std::printf("%d\n", *value);
  sycl::free(value, queue);
}
