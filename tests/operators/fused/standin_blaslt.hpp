// A stand-in for cuBLASLt and hipBLASLt. It implements the functions that Isthmus calls, with double
// arithmetic, on the streams of libstandin_device.so. It rejects constants of the other library.
// standin_blaslt_names.cpp.in defines the exported functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace standin_blaslt {

struct family {
  int transpose_a, epilogue, bias, bias_type;  // attributes of a matmul descriptor
  int no_transpose, transpose, compute;
  std::vector<int> preferences;
};
const family& cuda();
const family& hip();

int create(void** handle);
int destroy(void* handle);
int desc_create(const family& numbers, void** desc, int compute);
int desc_destroy(void* desc);
int desc_set(const family& numbers, void* desc, int attribute, const void* value, std::size_t bytes);
int layout_create(void** handle, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t leading);
int layout_destroy(void* handle);
int preference_create(void** handle);
int preference_destroy(void* handle);
int preference_set(const family& numbers, int attribute);
int heuristic(void* results, int* count);
int matmul(void* desc, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
           const void* beta, const void* c, void* c_layout, void* d, const void* algorithm, void* stream);

}  // namespace standin_blaslt
