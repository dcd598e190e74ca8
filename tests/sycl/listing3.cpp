// Listing 3 of the paper as a complete program (listing3.inc has its lines).
//
// The paper's lines are compiled unchanged. Two additions make that possible:
// - Line 5 requests a GPU, and the SYCL standard lets the selector throw if there is none. The listing is
//   compiled in a namespace whose own `sycl::gpu_selector_v` prefers a GPU and otherwise selects the CPU.
// - The names that the listing leaves open: buffer_size, buffer_offset, bcast_root and the kernel.
#include <cstdio>
#include <sccl.hpp>

#include "portable.hpp"

namespace listing3 {

namespace sycl {
using namespace ::sycl;
inline int gpu_selector_v(const ::sycl::device& device) {
  return device.is_gpu() ? 2 : device.is_cpu() ? 1 : -1;
}
}  // namespace sycl

constexpr std::size_t buffer_size = 1000;
constexpr std::size_t buffer_offset = 0;
constexpr int bcast_root = 0;

// The root writes the data, the others write something else. A host task replaces the kernel, because the
// runtime here has no device compiler; it is part of the same dependency graph.
void produce(sycl::buffer<int, 1>& buffer, sycl::handler& handler, int rank) {
  const sycl_test::host_task_accessor<int> data{buffer, handler};
  sycl_test::host_task(handler, [=] {
    for (std::size_t i = 0; i < buffer_size; ++i)
      data[i] = rank == bcast_root ? static_cast<int>(7 * i + 3) : -1;
  });
}

int check(sycl::buffer<int, 1>& buffer, int rank) {
  const sycl::host_accessor data{buffer, sycl::read_only};
  int wrong = 0;
  for (std::size_t i = 0; i < buffer_size; ++i) wrong += data[i] != static_cast<int>(7 * i + 3);
  std::printf("listing 3, rank %d: %d wrong\n", rank, wrong);
  return wrong;
}

#include "listing3.inc"

}  // namespace listing3

int main(int argc, char** argv) { return listing3::main(argc, argv); }
