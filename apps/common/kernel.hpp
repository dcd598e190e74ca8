// A kernel of a program here: a function object of its device_code.hpp that is called for every point of a
// grid,
//
//   struct scale {
//     static constexpr const char* name = "space::scale";
//     float factor;
//     void operator()(unsigned long row, unsigned long column, const float* from, float* to) const;
//   };
//
// with parameters as members and pointers to arrays as arguments. launcher.hpp runs it, compiled by a
// SYCL compiler (single_source/) or, from the same text, by the runtime (runtime/). Columns vary fastest, so
// arrays are best read and written by column.
#pragma once

#include <sycl/sycl.hpp>
#include <vector>

namespace apps {

struct grid {
  unsigned long rows = 1, columns = 1;
  unsigned long group_rows = 1, group_columns = 64;  // of a work-group

  bool empty() const { return rows == 0 || columns == 0; }
  sycl::nd_range<2> range() const {
    const auto round_up = [](unsigned long n, unsigned long to) { return (n + to - 1) / to * to; };
    return {{round_up(rows, group_rows), round_up(columns, group_columns)}, {group_rows, group_columns}};
  }
};

// Every element of an array.
inline grid linear_grid(unsigned long count) { return {1, count, 1, 256}; }

using events = std::vector<sycl::event>;

}  // namespace apps
