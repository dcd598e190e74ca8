// cuBLASLt, found at run time and declared here with neutral types; abi_check_cublaslt.cpp compares the
// declarations with the real header wherever it is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace isthmus::fused {

enum lt_attribute : int {
  lt_desc_transpose_a = 3,
  lt_desc_epilogue = 7,
  lt_desc_bias_pointer = 8,
  lt_desc_bias_type = 26,
  lt_preference_workspace = 1,
  lt_preference_alignment_a = 5,
  lt_preference_alignment_b = 6,
  lt_preference_alignment_c = 7,
  lt_preference_alignment_d = 8
};
inline constexpr int lt_success = 0;
inline constexpr int lt_no_transpose = 0, lt_transpose = 1;
inline constexpr int lt_epilogue_default = 1, lt_epilogue_bias = 4;
inline constexpr int lt_compute_float32 = 68;
inline constexpr int lt_type_float32 = 0, lt_type_float16 = 2, lt_type_bfloat16 = 14;

struct lt_algorithm {
  std::uint64_t data[8];
};
struct lt_heuristic {
  lt_algorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

struct cublaslt {
  // The process's library, loaded at the first call that succeeds and kept; nullptr and `reason` where there
  // is none. `option`: the configured path, or null. Any thread.
  static const cublaslt* get(const char* option, std::string& reason);

  std::size_t (*get_version)() = nullptr;
  const char* (*get_status_name)(int status) = nullptr;
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*desc_create)(void** desc, int compute, int scale) = nullptr;
  int (*desc_destroy)(void* desc) = nullptr;
  int (*desc_set)(void* desc, int attribute, const void* value, std::size_t bytes) = nullptr;
  int (*layout_create)(void** layout, int type, std::uint64_t rows, std::uint64_t cols,
                       std::int64_t leading) = nullptr;
  int (*layout_destroy)(void* layout) = nullptr;
  int (*preference_create)(void** preference) = nullptr;
  int (*preference_destroy)(void* preference) = nullptr;
  int (*preference_set)(void* preference, int attribute, const void* value, std::size_t bytes) = nullptr;
  int (*heuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference, int wanted,
                   lt_heuristic* found, int* count) = nullptr;
  int (*matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                const lt_algorithm* algorithm, void* workspace, std::size_t workspace_bytes,
                void* stream) = nullptr;
  std::string path;

 private:
  std::string load(const char* option);
};

}  // namespace isthmus::fused
