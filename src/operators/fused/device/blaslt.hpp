// cuBLASLt and hipBLASLt, loaded at run time. Their functions have the same signatures but different names and
// constants. blaslt.def declares them with neutral types. abi_check_blaslt.cpp checks the declarations against
// the real headers if these are installed.
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
#define ISTHMUS_LT_CONSTANT(name, cuda, hip, native) int name;
#include "operators/fused/device/blaslt.def"
  // Preference attributes for the alignments of A, B, C and D; null if the library has none.
  const std::array<int, 4>* alignments;
};

inline constexpr std::array<int, 4> cublaslt_alignments = {5, 6, 7, 8};
inline constexpr lt_traits cublaslt_traits = {.name = "cuBLASLt",
                                              .prefix = "cublasLt",
                                              .option = "backend.fused.cublaslt_library",
                                              .variable = "ISTHMUS_CUBLASLT_LIBRARY",
#define ISTHMUS_LT_CONSTANT(name, cuda, hip, native) .name = cuda,
#include "operators/fused/device/blaslt.def"
                                              .alignments = &cublaslt_alignments};
inline constexpr lt_traits hipblaslt_traits = {.name = "hipBLASLt",
                                               .prefix = "hipblasLt",
                                               .option = "backend.fused.hipblaslt_library",
                                               .variable = "ISTHMUS_HIPBLASLT_LIBRARY",
#define ISTHMUS_LT_CONSTANT(name, cuda, hip, native) .name = hip,
#include "operators/fused/device/blaslt.def"
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

#define ISTHMUS_LT_FUNCTION(member, result, arguments, cuda, hip) result(*member) arguments = nullptr;
#include "operators/fused/device/blaslt.def"
};

}  // namespace isthmus::fused
