// allgather_gemm with products of the test's own: every row once, none before its rows are there.
#include <isthmus/sycl/fused.hpp>

#include "fixture.hpp"

namespace sycl_test {

using fused = ranks_of_one_process;

TEST_F(fused, every_row_is_multiplied_once_after_it_arrived) {
  constexpr std::uint64_t rows = 37, k = 19, n = 11;
  const auto b = random_ints(k * n, 5);
  for (const std::uint32_t chunks : {1u, 3u, 37u, 100u}) {
    std::vector<std::vector<int>> c(size, std::vector<int>(size * rows * n, 0));
    in_threads([&](std::size_t r) {
      std::fill_n(recv[r], capacity, poison);
      sycl::queue products = lasting_queue(comms[r].device());
      const sycl::event produced = products.submit([&](sycl::handler& handler) {
        handler.host_task([=, target = send[r], values = inputs[r]] {
          std::this_thread::sleep_for(std::chrono::milliseconds(5 * r));
          std::copy_n(values.begin(), rows * k, target);
        });
      });
      const auto multiply = [&](const int* from, std::uint64_t first, std::uint64_t count,
                                const isthmus::dependencies& after) {
        return products.submit([&](sycl::handler& handler) {
          handler.depends_on(after);
          handler.host_task([=, &b, out = c[r].data()] {
            for (std::uint64_t row = 0; row < count; ++row)
              for (std::uint64_t col = 0; col < n; ++col)
                for (std::uint64_t i = 0; i < k; ++i)
                  out[(first + row) * n + col] += static_cast<int>(
                      static_cast<unsigned>(from[row * k + i]) * static_cast<unsigned>(b[i * n + col]) % 1000);
          });
        });
      };
      for (const sycl::event& each : isthmus::allgather_gemm(comms[r], queues[r], send[r], recv[r],
                                                             {rows, k, chunks}, multiply, {produced}))
        sycl::event(each).wait();
      queues[r].wait();
    });
    for (std::size_t r = 0; r < size; ++r)
      for (std::uint64_t row = 0; row < size * rows; ++row) {
        const auto& a = inputs[row / rows];
        for (std::uint64_t col = 0; col < n; ++col) {
          int expected = 0;
          for (std::uint64_t i = 0; i < k; ++i)
            expected += static_cast<int>(static_cast<unsigned>(a[row % rows * k + i]) *
                                         static_cast<unsigned>(b[i * n + col]) % 1000);
          ASSERT_EQ(c[r][row * n + col], expected) << "rank " << r << " row " << row << " chunks " << chunks;
        }
      }
  }
}

}  // namespace sycl_test
