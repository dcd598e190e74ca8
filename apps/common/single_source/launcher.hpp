// Kernels for a SYCL device compiler (icpx, clang++ -fsycl, acpp): one source for host and device.
#pragma once

#include <string>
#include <tuple>
#include <utility>

#include "common/kernel.hpp"
#include "common/memory_block.hpp"

namespace apps {

struct kernel_source {};
template <typename Body>
kernel_source source_of() {
  return {};
}

class launcher {
 public:
  launcher(const sycl::queue&, const char*, const std::vector<kernel_source>&) {}

  static const char* how_compiled() { return "single source"; }

  // Runs `body` for every point of `grid`. All arrays are of one kind. Asynchronous.
  template <typename Body, typename... Elements>
  sycl::event run(sycl::queue queue, const grid& grid, const Body& body, const events& after,
                  const array<Elements>&... arrays) const {
    if (grid.empty()) return {};
    const unsigned long rows = grid.rows, columns = grid.columns;
    return queue.submit([&](sycl::handler& handler) {
      handler.depends_on(after);
      if ((arrays.block().buffer && ...)) {
        const auto accessors = std::make_tuple(accessor_of(arrays, handler)...);
        handler.parallel_for(grid.range(), [=](sycl::nd_item<2> item) {
          const unsigned long row = item.get_global_id(0), column = item.get_global_id(1);
          if (row >= rows || column >= columns) return;
          std::apply(
              [&](const auto&... each) {
                body(row, column, reinterpret_cast<Elements*>(const_cast<unsigned char*>(&each[0]))...);
              },
              accessors);
        });
      } else {
        const auto pointers = std::make_tuple(static_cast<Elements*>(arrays.block().usm.get())...);
        handler.parallel_for(grid.range(), [=](sycl::nd_item<2> item) {
          const unsigned long row = item.get_global_id(0), column = item.get_global_id(1);
          if (row >= rows || column >= columns) return;
          std::apply([&](auto*... each) { body(row, column, each...); }, pointers);
        });
      }
    });
  }

 private:
  template <typename T>
  static sycl::accessor<unsigned char, 1> accessor_of(const array<T>& values, sycl::handler& handler) {
    byte_buffer buffer = *values.block().buffer;  // accessors take a non-const reference
    return {buffer, handler};
  }
};

}  // namespace apps
