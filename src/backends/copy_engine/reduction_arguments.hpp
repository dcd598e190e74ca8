// Arguments of one launch of reduction_kernel.cu. NVRTC and HIPRTC also compile this file, without
// a standard library.
#pragma once

namespace isthmus::copy_engine {

constexpr unsigned block_threads = 256;  // threads per block

struct reduction_arguments {
  const void* peer_contributions;  // the other ranks' contributions in rank order; 16-byte aligned
  unsigned long long row_bytes;    // distance between two of them; a multiple of 16
  const void* own;                 // this rank's contribution; element-aligned
  void* result;                    // element-aligned; may be equal to `own`
  unsigned long long count;        // elements
  int rank, size;
};

}  // namespace isthmus::copy_engine
