// A kernel is a function object in a program's device_code.hpp that is called for every point of a grid:
//
//   struct scale {
//     static constexpr const char* name = "space::scale";
//     float factor;  // a parameter
//     void operator()(unsigned long row, unsigned long column, const float* from, float* to) const;
//   };
//
// Members are parameters, and pointers to arrays are arguments. launcher.hpp runs it. A SYCL compiler compiles
// it with the program (single_source/), or the runtime compiles the same text (runtime/). Columns vary fastest,
// so arrays should be accessed by column.
#pragma once

#include <sycl/sycl.hpp>
#include <vector>

namespace apps {

struct grid {
  unsigned long rows = 1, columns = 1;
  unsigned long group_rows = 1, group_columns = 64;  // size of a work-group

  bool empty() const { return rows == 0 || columns == 0; }
  sycl::nd_range<2> range() const {
    const auto round_up = [](unsigned long n, unsigned long multiple) {
      return (n + multiple - 1) / multiple * multiple;
    };
    return {{round_up(rows, group_rows), round_up(columns, group_columns)}, {group_rows, group_columns}};
  }
};

// One point per element of an array.
inline grid linear_grid(unsigned long count) { return {1, count, 1, 256}; }

using events = std::vector<sycl::event>;

}  // namespace apps
