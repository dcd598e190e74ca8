// Checks blaslt.hpp against the header of cuBLASLt, if it is installed. Generates no code.
#include <cublasLt.h>

#include "base/abi_check.hpp"
#include "operators/fused/device/blaslt.hpp"

namespace isthmus::fused {

static_assert(matches_abi<decltype(blaslt::get_version)>(&cublasLtGetVersion));
static_assert(matches_abi<decltype(blaslt::get_status_name)>(&cublasLtGetStatusName));
static_assert(matches_abi<decltype(blaslt::create)>(&cublasLtCreate));
static_assert(matches_abi<decltype(blaslt::destroy)>(&cublasLtDestroy));
static_assert(matches_abi<decltype(blaslt::desc_create)>(&cublasLtMatmulDescCreate));
static_assert(matches_abi<decltype(blaslt::desc_destroy)>(&cublasLtMatmulDescDestroy));
static_assert(matches_abi<decltype(blaslt::desc_set)>(&cublasLtMatmulDescSetAttribute));
static_assert(matches_abi<decltype(blaslt::layout_create)>(&cublasLtMatrixLayoutCreate));
static_assert(matches_abi<decltype(blaslt::layout_destroy)>(&cublasLtMatrixLayoutDestroy));
static_assert(matches_abi<decltype(blaslt::preference_create)>(&cublasLtMatmulPreferenceCreate));
static_assert(matches_abi<decltype(blaslt::preference_destroy)>(&cublasLtMatmulPreferenceDestroy));
static_assert(matches_abi<decltype(blaslt::preference_set)>(&cublasLtMatmulPreferenceSetAttribute));
static_assert(matches_abi<decltype(blaslt::heuristic)>(&cublasLtMatmulAlgoGetHeuristic));
static_assert(matches_abi<decltype(blaslt::matmul)>(&cublasLtMatmul));

static_assert(cublaslt_traits.transpose_a == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(cublaslt_traits.epilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(cublaslt_traits.bias_pointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(cublaslt_traits.bias_type == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
static_assert(cublaslt_traits.workspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(cublaslt_alignments[0] == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(cublaslt_alignments[1] == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(cublaslt_alignments[2] == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(cublaslt_alignments[3] == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(lt_success == CUBLAS_STATUS_SUCCESS);
static_assert(cublaslt_traits.no_transpose == CUBLAS_OP_N && cublaslt_traits.transpose == CUBLAS_OP_T);
static_assert(lt_epilogue_default == CUBLASLT_EPILOGUE_DEFAULT && lt_epilogue_bias == CUBLASLT_EPILOGUE_BIAS);
static_assert(cublaslt_traits.compute_float32 == CUBLAS_COMPUTE_32F);
static_assert(lt_type_float32 == CUDA_R_32F && lt_type_float16 == CUDA_R_16F &&
              lt_type_bfloat16 == CUDA_R_16BF);

static_assert(sizeof(lt_heuristic) >= sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(alignof(lt_heuristic) >= alignof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, algo) == 0);

}  // namespace isthmus::fused
