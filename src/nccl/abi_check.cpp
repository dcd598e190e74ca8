// Compares nccl/api.hpp with nccl.h. Compiled only if that header is installed.
#include "base/abi_check.hpp"

#include <nccl.h>

#include <cstddef>

#include "nccl/api.hpp"

namespace isthmus::nccl {

static_assert(int{native_unhandled_device_error} == int{ncclUnhandledCudaError});
static_assert(int{native_system_error} == int{ncclSystemError});
static_assert(int{native_internal_error} == int{ncclInternalError});
static_assert(int{native_invalid_argument} == int{ncclInvalidArgument});
static_assert(int{native_invalid_usage} == int{ncclInvalidUsage});
static_assert(int{native_remote_error} == int{ncclRemoteError});
static_assert(int{native_in_progress} == int{ncclInProgress});

constexpr bool is_same(ncclRedOp_t op, native_op declared, isthmus_reduction_op isthmus) {
  return int{op} == int{declared} && isthmus_ops[declared] == isthmus;
}
static_assert(is_same(ncclSum, native_sum, ISTHMUS_SUM));
static_assert(is_same(ncclProd, native_prod, ISTHMUS_PROD));
static_assert(is_same(ncclMax, native_max, ISTHMUS_MAX));
static_assert(is_same(ncclMin, native_min, ISTHMUS_MIN));
static_assert(is_same(ncclAvg, native_avg, ISTHMUS_AVG));

constexpr bool is_same(ncclDataType_t datatype, native_datatype declared, isthmus_datatype isthmus) {
  return int{datatype} == int{declared} && isthmus_datatypes[declared] == isthmus;
}
static_assert(is_same(ncclInt8, native_int8, ISTHMUS_INT8));
static_assert(is_same(ncclUint8, native_uint8, ISTHMUS_UINT8));
static_assert(is_same(ncclInt32, native_int32, ISTHMUS_INT32));
static_assert(is_same(ncclUint32, native_uint32, ISTHMUS_UINT32));
static_assert(is_same(ncclInt64, native_int64, ISTHMUS_INT64));
static_assert(is_same(ncclUint64, native_uint64, ISTHMUS_UINT64));
static_assert(is_same(ncclFloat16, native_float16, ISTHMUS_FLOAT16));
static_assert(is_same(ncclFloat32, native_float32, ISTHMUS_FLOAT32));
static_assert(is_same(ncclFloat64, native_float64, ISTHMUS_FLOAT64));
static_assert(is_same(ncclBfloat16, native_bfloat16, ISTHMUS_BFLOAT16));
static_assert(is_same(ncclFloat8e4m3, native_float8_e4m3, ISTHMUS_FLOAT8_E4M3));
static_assert(is_same(ncclFloat8e5m2, native_float8_e5m2, ISTHMUS_FLOAT8_E5M2));
static_assert(int{ncclNumTypes} == datatype_count && int{ncclNumOps} == op_count);

// Functions that every supported version of the header declares.
#define NATIVE_FUNCTION(Name, member, requirement, ...) NATIVE_CHECK_##requirement(Name, member)
#define NATIVE_COLLECTIVE NATIVE_FUNCTION
#define NATIVE_MESSAGE NATIVE_FUNCTION
#define NATIVE_CHECK_common(Name, member) \
  static_assert(matches_abi<decltype(native_functions::member)>(&nccl##Name));
#define NATIVE_CHECK_nccl NATIVE_CHECK_common
#define NATIVE_CHECK_optional(Name, member)
#include "nccl/functions.def"
#undef NATIVE_CHECK_optional

static_assert(matches_abi<decltype(native_functions::comm_register)>(&ncclCommRegister));
static_assert(matches_abi<decltype(native_functions::comm_deregister)>(&ncclCommDeregister));
static_assert(matches_abi<decltype(native_functions::comm_init_rank)>(&ncclCommInitRank));
static_assert(matches_abi<decltype(native_functions::comm_init_all)>(&ncclCommInitAll));
static_assert(matches_abi<decltype(native_functions::comm_device)>(&ncclCommCuDevice));
static_assert(matches_abi<decltype(native_functions::bcast)>(&ncclBcast));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
static_assert(matches_abi<decltype(native_functions::gather)>(&ncclGather));
static_assert(matches_abi<decltype(native_functions::scatter)>(&ncclScatter));
static_assert(matches_abi<decltype(native_functions::all_to_all)>(&ncclAlltoAll));
static_assert(matches_abi<decltype(native_functions::comm_init_rank_scalable)>(&ncclCommInitRankScalable));
static_assert(matches_abi<decltype(native_functions::group_simulate_end)>(&ncclGroupSimulateEnd));
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 32, 0)
static_assert(matches_abi<decltype(native_functions::comm_revoke)>(&ncclCommRevoke));
#define NATIVE_COLLECTIVE(Name, member, ...) \
  static_assert(matches_abi<decltype(native_functions::member##_configured)>(&nccl##Name##Config));
#include "nccl/functions.def"
#endif

static_assert(split_no_color == NCCL_SPLIT_NOCOLOR);
#ifdef NCCL_WIN_COLL_SYMMETRIC  // 2.27 and newer
static_assert(matches_abi<decltype(native_functions::window_register)>(&ncclCommWindowRegister));
static_assert(matches_abi<decltype(native_functions::window_deregister)>(&ncclCommWindowDeregister));
static_assert(window_symmetric == NCCL_WIN_COLL_SYMMETRIC);
#endif

static_assert(sizeof(native_unique_id) == sizeof(ncclUniqueId));
// The fields that this project sets. Later versions only append fields.
static_assert(sizeof(native_config) <= sizeof(ncclConfig_t));
static_assert(offsetof(native_config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(native_config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(native_config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(native_config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(native_config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(native_config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(native_config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(native_config, split_share) == offsetof(ncclConfig_t, splitShare));

}  // namespace isthmus::nccl
