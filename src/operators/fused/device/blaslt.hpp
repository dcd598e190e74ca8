// cuBLASLt and hipBLASLt, loaded at run time. Their functions have the same signatures but different names and
// constants. They are declared here with neutral types. abi_check_cublaslt.cpp and abi_check_hipblaslt.cpp
// check the declarations against the real headers if these are installed.
#pragma once

#include <isthmus/isthmus.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dynamic_library.hpp"

namespace isthmus::fused {

// Constants that are equal in both libraries.
inline constexpr int lt_success = 0;
inline constexpr int lt_epilogue_default = 1, lt_epilogue_bias = 4;
inline constexpr int lt_type_float32 = 0, lt_type_float16 = 2, lt_type_bfloat16 = 14;

// Names and constants that differ between the libraries.
struct lt_traits {
  const char* name;    // "cuBLASLt"
  const char* prefix;  // of its function names
  // Configuration option and environment variable that set the path of the library.
  const char* option;
  const char* variable;
  int transpose_a, epilogue, bias_pointer, bias_type;  // attributes of a matmul descriptor
  int no_transpose, transpose, compute_float32;
  int workspace;  // preference
  // Preference attributes for the alignments of A, B, C and D; null if the library has none.
  const std::array<int, 4>* alignments;
};

inline constexpr std::array<int, 4> cublaslt_alignments = {5, 6, 7, 8};
inline constexpr lt_traits cublaslt_traits = {.name = "cuBLASLt",
                                              .prefix = "cublasLt",
                                              .option = "backend.fused.cublaslt_library",
                                              .variable = "ISTHMUS_CUBLASLT_LIBRARY",
                                              .transpose_a = 3,
                                              .epilogue = 7,
                                              .bias_pointer = 8,
                                              .bias_type = 26,
                                              .no_transpose = 0,
                                              .transpose = 1,
                                              .compute_float32 = 68,
                                              .workspace = 1,
                                              .alignments = &cublaslt_alignments};
inline constexpr lt_traits hipblaslt_traits = {.name = "hipBLASLt",
                                               .prefix = "hipblasLt",
                                               .option = "backend.fused.hipblaslt_library",
                                               .variable = "ISTHMUS_HIPBLASLT_LIBRARY",
                                               .transpose_a = 0,
                                               .epilogue = 2,
                                               .bias_pointer = 3,
                                               .bias_type = 4,
                                               .no_transpose = 111,
                                               .transpose = 112,
                                               .compute_float32 = 2,
                                               .workspace = 1,
                                               .alignments = nullptr};

// Result of a heuristic query: opaque, and large enough for both libraries. It starts with the algorithm that
// is passed to a product.
struct alignas(8) lt_heuristic {
  std::byte bytes[96];
};

struct blaslt {
  // Returns the library of a platform. It is loaded by the first successful call and stays loaded. `option`:
  // the configured path, or null.
  // Errors: returns nullptr and sets `reason`.
  // Thread safety: any thread.
  static const blaslt* get(isthmus_platform platform, const char* option, std::string& reason);
  // Returns nullptr if the platform has no such library.
  static const lt_traits* traits_of(isthmus_platform platform);

  const lt_traits& traits;
  std::string path;

  std::string version(void* handle) const;
  std::string status_text(int status) const;

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
  int (*heuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference,
                   int requested_count, lt_heuristic* algorithms, int* count) = nullptr;
  int (*matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                const lt_heuristic* algorithm, void* workspace, std::size_t workspace_bytes,
                void* stream) = nullptr;

  // cuBLASLt only.
  std::size_t (*get_version)() = nullptr;
  const char* (*get_status_name)(int status) = nullptr;
  // hipBLASLt only. Version 0.6 (ROCm 6.0) introduced transform_create and the constants above.
  int (*get_version_for_handle)(void* handle, int* version) = nullptr;
  int (*transform_create)(void** desc, int scale) = nullptr;
};

}  // namespace isthmus::fused
