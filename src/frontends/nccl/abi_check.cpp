// Compares the declarations in nccl_api.hpp with the installed nccl.h.
#include <nccl.h>

#include "frontends/nccl/nccl_api.hpp"

namespace isthmus::nccl_shim {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(nccl_unique_id));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(nccl_config, blocking));
static_assert(ncclSuccess == nccl_success && ncclUnhandledCudaError == nccl_unhandled_cuda_error &&
              ncclInternalError == nccl_internal_error && ncclInvalidArgument == nccl_invalid_argument &&
              ncclRemoteError == nccl_remote_error && ncclInProgress == nccl_in_progress);
static_assert(datatypes[ncclInt8] == ISTHMUS_INT8 && datatypes[ncclUint8] == ISTHMUS_UINT8 &&
              datatypes[ncclInt32] == ISTHMUS_INT32 && datatypes[ncclUint32] == ISTHMUS_UINT32 &&
              datatypes[ncclInt64] == ISTHMUS_INT64 && datatypes[ncclUint64] == ISTHMUS_UINT64 &&
              datatypes[ncclFloat16] == ISTHMUS_FLOAT16 && datatypes[ncclFloat32] == ISTHMUS_FLOAT32 &&
              datatypes[ncclFloat64] == ISTHMUS_FLOAT64 && datatypes[ncclBfloat16] == ISTHMUS_BFLOAT16 &&
              datatypes[ncclFloat8e4m3] == ISTHMUS_FLOAT8_E4M3 &&
              datatypes[ncclFloat8e5m2] == ISTHMUS_FLOAT8_E5M2);
static_assert(ncclNumTypes == datatype_count && ncclNumOps == reduction_count);
static_assert(reductions[ncclSum] == ISTHMUS_SUM && reductions[ncclProd] == ISTHMUS_PROD &&
              reductions[ncclMax] == ISTHMUS_MAX && reductions[ncclMin] == ISTHMUS_MIN &&
              reductions[ncclAvg] == ISTHMUS_AVG);

}  // namespace
}  // namespace isthmus::nccl_shim
