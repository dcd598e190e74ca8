// Kernels for a SYCL compiler (icpx, clang++ -fsycl, acpp): one source for host and device.
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

  static const char* compilation_mode() { return "single source"; }

  // Runs `body` for every point of `grid`, asynchronously.
  template <typename Body, typename... Elements>
  sycl::event run(sycl::queue queue, const grid& grid, const Body& body, const events& wait_events,
                  const array<Elements>&... arrays) const {
    if (grid.empty()) return {};
    const unsigned long rows = grid.rows, columns = grid.columns;
    return queue.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_events);
      const auto over_grid = [&](const auto& places) {
        handler.parallel_for(grid.range(), [=](sycl::nd_item<2> item) {
          const unsigned long row = item.get_global_id(0), column = item.get_global_id(1);
          if (row >= rows || column >= columns) return;
          std::apply([&](const auto&... memory) { body(row, column, memory.data()...); }, places);
        });
      };
      if ((arrays.block().buffer || ...)) {
        over_grid(std::make_tuple(place<Elements>(arrays, handler)...));
      } else {
        over_grid(std::make_tuple(pointer<Elements>{static_cast<Elements*>(arrays.block().usm.get())}...));
      }
    });
  }

 private:
  template <typename T>
  struct pointer {
    T* start;
    T* data() const { return start; }
  };
  // The memory of an array in a kernel: a buffer's accessor, or USM with an empty accessor.
  template <typename T>
  struct place {
    place(const array<T>& values, sycl::handler& handler) : start(static_cast<T*>(values.block().usm.get())) {
      if (!values.block().buffer) return;
      byte_buffer buffer = *values.block().buffer;  // accessors take a non-const reference
      bytes = sycl::accessor<unsigned char, 1>(buffer, handler);
      in_buffer = true;
    }
    T* data() const { return in_buffer ? reinterpret_cast<T*>(const_cast<unsigned char*>(&bytes[0])) : start; }

    sycl::accessor<unsigned char, 1> bytes;
    T* start;
    bool in_buffer = false;
  };
};

}  // namespace apps
