// cuBLASLt and hipBLASLt, found at run time: functions of the same shapes behind different names, with numbers
// of their own. Declared here with neutral types; abi_check_cublaslt.cpp and abi_check_hipblaslt.cpp compare
// the declarations with the real headers wherever these are installed.
#pragma single_us

#include <isthmus/isthmus.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dynamic_library.hpp"

namespace isthmus::fused {

// What both number alike.
inline constexpr int lt_success = 0;
inline constexpr int lt_epilogue_default = 1, lt_epilogue_bias = 4;
inline constexpr int lt_type_float32 = 0, lt_type_float16 = 2, lt_type_bfloat16 = 14;

// What they do not.
struct lt_traits {
  const char* name;    // "cuBLASLt"
  const char* prefix;  // of its functions
  const char* option;  // with its path, in [backend.fused]; the variable is likewise
  const char* variable;
  int transpose_a, epilogue, bias_pointer, bias_type;  // attributes of a description
  int no_transpose, transpose, compute_float32;
  int workspace;                         // preference
  const std::array<int, 4>* alignments;  // preferences: of A, B, C and D; null where there are none
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

// What a heuristic answers: opaque, and large enough for either. The algorithm, which a product takes, comes
// first.
struct alignas(8) lt_heuristic {
  std::byte bytes[96];
};

struct blaslt {
  // The process's library for a platform, loaded at the first call that succeeds and kept; nullptr and `reason`
  // where there is none. `option`: the configured path, or null. Any thread.
  static const blaslt* get(isthmus_platform platform, const char* option, std::string& reason);
  // nullptr for a platform without.
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
  int (*heuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference, int requested_count,
                   lt_heuristic* algorithms, int* count) = nullptr;
  int (*matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                const lt_heuristic* algorithm, void* workspace, std::size_t workspace_bytes,
                void* stream) = nullptr;

  // cuBLASLt's.
  std::size_t (*get_version)() = nullptr;
  const char* (*get_status_name)(int status) = nullptr;
  // hipBLASLt's. Its numbers above are those since 0.6 (ROCm 6.0), which has brought the second.
  int (*get_version_for_handle)(void* handle, int* version) = nullptr;
  int (*transform_create)(void** desc, int scale) = nullptr;
};

}  // namespace isthmus::fused
