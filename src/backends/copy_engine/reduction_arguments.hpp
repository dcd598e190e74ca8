// What one launch of reduction_kernel.cu combines. The kernel's compiler reads this file, too, and has no
// standard library.
#pragma once

namespace isthmus::copy_engine {

constexpr unsigned block_threads = 256;  // of a launch

struct reduction_arguments {
  const void* others;            // the other ranks' contributions in rank order; 16-byte aligned
  unsigned long long row_bytes;  // from one of them to the next; a multiple of 16
  const void* own;               // as aligned as an element is
  void* result;                  // likewise; may be `own`
  unsigned long long count;      // elements
  int rank, size;
};

}  // namespace isthmus::copy_engine
