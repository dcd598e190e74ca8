// cublaslt.hpp against the real header. Compiled where it is installed; no code comes of it.
#include <cublasLt.h>

#include "fused/cublaslt.hpp"
#include "runtime/abi_check.hpp"

namespace isthmus::fused {

static_assert(calls<decltype(cublaslt::get_version)>(&cublasLtGetVersion));
static_assert(calls<decltype(cublaslt::get_status_name)>(&cublasLtGetStatusName));
static_assert(calls<decltype(cublaslt::create)>(&cublasLtCreate));
static_assert(calls<decltype(cublaslt::destroy)>(&cublasLtDestroy));
static_assert(calls<decltype(cublaslt::desc_create)>(&cublasLtMatmulDescCreate));
static_assert(calls<decltype(cublaslt::desc_destroy)>(&cublasLtMatmulDescDestroy));
static_assert(calls<decltype(cublaslt::desc_set)>(&cublasLtMatmulDescSetAttribute));
static_assert(calls<decltype(cublaslt::layout_create)>(&cublasLtMatrixLayoutCreate));
static_assert(calls<decltype(cublaslt::layout_destroy)>(&cublasLtMatrixLayoutDestroy));
static_assert(calls<decltype(cublaslt::preference_create)>(&cublasLtMatmulPreferenceCreate));
static_assert(calls<decltype(cublaslt::preference_destroy)>(&cublasLtMatmulPreferenceDestroy));
static_assert(calls<decltype(cublaslt::preference_set)>(&cublasLtMatmulPreferenceSetAttribute));
static_assert(calls<decltype(cublaslt::heuristic)>(&cublasLtMatmulAlgoGetHeuristic));
static_assert(calls<decltype(cublaslt::matmul)>(&cublasLtMatmul));

static_assert(lt_desc_transpose_a == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(lt_desc_epilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(lt_desc_bias_pointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(lt_desc_bias_type == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
static_assert(lt_preference_workspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(lt_preference_alignment_a == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(lt_preference_alignment_b == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(lt_preference_alignment_c == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(lt_preference_alignment_d == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(lt_success == CUBLAS_STATUS_SUCCESS);
static_assert(lt_no_transpose == CUBLAS_OP_N && lt_transpose == CUBLAS_OP_T);
static_assert(lt_epilogue_default == CUBLASLT_EPILOGUE_DEFAULT && lt_epilogue_bias == CUBLASLT_EPILOGUE_BIAS);
static_assert(lt_compute_float32 == CUBLAS_COMPUTE_32F);
static_assert(lt_type_float32 == CUDA_R_32F && lt_type_float16 == CUDA_R_16F &&
              lt_type_bfloat16 == CUDA_R_16BF);

static_assert(sizeof(lt_algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(lt_heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(lt_heuristic, algorithm) == offsetof(cublasLtMatmulHeuristicResult_t, algo));
static_assert(offsetof(lt_heuristic, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(lt_heuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(lt_heuristic, waves) == offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));

}  // namespace isthmus::fused
