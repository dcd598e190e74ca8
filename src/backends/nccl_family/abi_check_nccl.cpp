// Compares native_api.hpp and traits.hpp with nccl.h. Compiled only if that header is installed.
#include <nccl.h>

#include <cstddef>

#include "backends/nccl_family/native_api.hpp"
#include "backends/nccl_family/traits.hpp"
#include "base/abi_check.hpp"

namespace isthmus::nccl_family {

static_assert(int{native_unhandled_device_error} == int{ncclUnhandledCudaError});
static_assert(int{native_system_error} == int{ncclSystemError});
static_assert(int{native_internal_error} == int{ncclInternalError});
static_assert(int{native_invalid_argument} == int{ncclInvalidArgument});
static_assert(int{native_invalid_usage} == int{ncclInvalidUsage});
static_assert(int{native_remote_error} == int{ncclRemoteError});
static_assert(int{native_in_progress} == int{ncclInProgress});

static_assert(int{native_sum} == int{ncclSum} && int{native_prod} == int{ncclProd});
static_assert(int{native_max} == int{ncclMax} && int{native_min} == int{ncclMin} &&
              int{native_avg} == int{ncclAvg});

static_assert(int{native_int8} == int{ncclInt8} && int{native_uint8} == int{ncclUint8});
static_assert(int{native_int32} == int{ncclInt32} && int{native_uint32} == int{ncclUint32});
static_assert(int{native_int64} == int{ncclInt64} && int{native_uint64} == int{ncclUint64});
static_assert(int{native_float16} == int{ncclFloat16} && int{native_bfloat16} == int{ncclBfloat16});
static_assert(int{native_float32} == int{ncclFloat32} && int{native_float64} == int{ncclFloat64});
static_assert(int{native_float8_e4m3} == int{ncclFloat8e4m3} && int{native_float8_e5m2} == int{ncclFloat8e5m2});

static_assert(matches_abi<decltype(native_functions::get_version)>(&ncclGetVersion));
static_assert(matches_abi<decltype(native_functions::get_unique_id)>(&ncclGetUniqueId));
static_assert(matches_abi<decltype(native_functions::get_error_string)>(&ncclGetErrorString));
static_assert(matches_abi<decltype(native_functions::get_last_error)>(&ncclGetLastError));
static_assert(matches_abi<decltype(native_functions::comm_destroy)>(&ncclCommDestroy));
static_assert(matches_abi<decltype(native_functions::comm_split)>(&ncclCommSplit));
static_assert(matches_abi<decltype(native_functions::comm_abort)>(&ncclCommAbort));
static_assert(matches_abi<decltype(native_functions::comm_get_async_error)>(&ncclCommGetAsyncError));
static_assert(matches_abi<decltype(native_functions::comm_count)>(&ncclCommCount));
static_assert(matches_abi<decltype(native_functions::comm_user_rank)>(&ncclCommUserRank));
static_assert(matches_abi<decltype(native_functions::comm_register)>(&ncclCommRegister));
static_assert(matches_abi<decltype(native_functions::comm_deregister)>(&ncclCommDeregister));
static_assert(matches_abi<decltype(native_functions::group_start)>(&ncclGroupStart));
static_assert(matches_abi<decltype(native_functions::group_end)>(&ncclGroupEnd));
#define NATIVE_COLLECTIVE(member, Name, parameters) \
  static_assert(matches_abi<decltype(native_functions::member)>(&nccl##Name));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#define NATIVE_OPTIONAL_COLLECTIVE NATIVE_COLLECTIVE
#endif
#include "backends/nccl_family/native_collectives.def"
static_assert(matches_abi<decltype(native_entry_points::comm_init_rank_config)>(&ncclCommInitRankConfig));

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

}  // namespace isthmus::nccl_family
