// Checks blaslt.hpp against the header of hipBLASLt, if it is installed. Generates no code.
#include <hipblaslt/hipblaslt.h>

#include "base/abi_check.hpp"
#include "operators/fused/device/blaslt.hpp"

namespace isthmus::fused {

static_assert(matches_abi<decltype(blaslt::get_version_for_handle)>(&hipblasLtGetVersion));
static_assert(matches_abi<decltype(blaslt::transform_create)>(&hipblasLtMatrixTransformDescCreate));
static_assert(matches_abi<decltype(blaslt::create)>(&hipblasLtCreate));
static_assert(matches_abi<decltype(blaslt::destroy)>(&hipblasLtDestroy));
static_assert(matches_abi<decltype(blaslt::desc_create)>(&hipblasLtMatmulDescCreate));
static_assert(matches_abi<decltype(blaslt::desc_destroy)>(&hipblasLtMatmulDescDestroy));
static_assert(matches_abi<decltype(blaslt::desc_set)>(&hipblasLtMatmulDescSetAttribute));
static_assert(matches_abi<decltype(blaslt::layout_create)>(&hipblasLtMatrixLayoutCreate));
static_assert(matches_abi<decltype(blaslt::layout_destroy)>(&hipblasLtMatrixLayoutDestroy));
static_assert(matches_abi<decltype(blaslt::preference_create)>(&hipblasLtMatmulPreferenceCreate));
static_assert(matches_abi<decltype(blaslt::preference_destroy)>(&hipblasLtMatmulPreferenceDestroy));
static_assert(matches_abi<decltype(blaslt::preference_set)>(&hipblasLtMatmulPreferenceSetAttribute));
static_assert(matches_abi<decltype(blaslt::heuristic)>(&hipblasLtMatmulAlgoGetHeuristic));
static_assert(matches_abi<decltype(blaslt::matmul)>(&hipblasLtMatmul));

static_assert(hipblaslt_traits.transpose_a == HIPBLASLT_MATMUL_DESC_TRANSA);
static_assert(hipblaslt_traits.epilogue == HIPBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(hipblaslt_traits.bias_pointer == HIPBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(hipblaslt_traits.bias_type == HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
static_assert(hipblaslt_traits.workspace == HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(hipblaslt_traits.no_transpose == HIPBLAS_OP_N && hipblaslt_traits.transpose == HIPBLAS_OP_T);
static_assert(hipblaslt_traits.compute_float32 == HIPBLAS_COMPUTE_32F);
static_assert(lt_success == HIPBLAS_STATUS_SUCCESS);
static_assert(lt_epilogue_default == HIPBLASLT_EPILOGUE_DEFAULT && lt_epilogue_bias == HIPBLASLT_EPILOGUE_BIAS);
static_assert(lt_type_float32 == HIP_R_32F && lt_type_float16 == HIP_R_16F && lt_type_bfloat16 == HIP_R_16BF);

static_assert(sizeof(lt_heuristic) >= sizeof(hipblasLtMatmulHeuristicResult_t));
static_assert(alignof(lt_heuristic) >= alignof(hipblasLtMatmulHeuristicResult_t));
static_assert(offsetof(hipblasLtMatmulHeuristicResult_t, algo) == 0);

}  // namespace isthmus::fused
