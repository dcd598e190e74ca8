// Checks blaslt.def and blaslt.hpp against the header of cuBLASLt, or of hipBLASLt if ISTHMUS_CHECK_HIPBLASLT is
// defined. Built only if the header is installed. Generates no code.
#ifdef ISTHMUS_CHECK_HIPBLASLT
#include <hipblaslt/hipblaslt.h>
#define ISTHMUS_LT_COLUMN(cuda, hip) hip
#define ISTHMUS_LT_NAME(cuda, hip) hipblasLt##hip
#define ISTHMUS_LT_NATIVE(name) HIPBLAS##name
#define ISTHMUS_LT_TYPE(name) HIP_##name
#else
#include <cublasLt.h>
#define ISTHMUS_LT_COLUMN(cuda, hip) cuda
#define ISTHMUS_LT_NAME(cuda, hip) cublasLt##cuda
#define ISTHMUS_LT_NATIVE(name) CUBLAS##name
#define ISTHMUS_LT_TYPE(name) CUDA_##name
#endif

#include "base/abi_check.hpp"
#include "operators/fused/device/blaslt.hpp"

namespace isthmus::fused {

constexpr undeclared cublasLtnone, hipblasLtnone;

#define ISTHMUS_LT_FUNCTION(member, result, arguments, cuda, hip) \
  static_assert(matches_abi<decltype(blaslt::member)>(ISTHMUS_LT_NAME(cuda, hip)));
#define ISTHMUS_LT_CONSTANT(name, cuda, hip, native) \
  static_assert(ISTHMUS_LT_COLUMN(cuda, hip) == ISTHMUS_LT_NATIVE(native));
#include "operators/fused/device/blaslt.def"

static_assert(lt_success == ISTHMUS_LT_NATIVE(_STATUS_SUCCESS));
static_assert(lt_epilogue_default == ISTHMUS_LT_NATIVE(LT_EPILOGUE_DEFAULT));
static_assert(lt_epilogue_bias == ISTHMUS_LT_NATIVE(LT_EPILOGUE_BIAS));
static_assert(lt_type_float32 == ISTHMUS_LT_TYPE(R_32F) && lt_type_float16 == ISTHMUS_LT_TYPE(R_16F) &&
              lt_type_bfloat16 == ISTHMUS_LT_TYPE(R_16BF));

using native_heuristic = ISTHMUS_LT_NAME(MatmulHeuristicResult_t, MatmulHeuristicResult_t);
static_assert(sizeof(lt_heuristic) >= sizeof(native_heuristic));
static_assert(alignof(lt_heuristic) >= alignof(native_heuristic));
static_assert(offsetof(native_heuristic, algo) == 0);

#ifndef ISTHMUS_CHECK_HIPBLASLT
static_assert(cublaslt_alignments[0] == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(cublaslt_alignments[1] == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(cublaslt_alignments[2] == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(cublaslt_alignments[3] == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
#endif

}  // namespace isthmus::fused
