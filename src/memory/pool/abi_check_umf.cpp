// Compares umf_library.hpp with UMF's headers. Compiled only if they are installed.
#include <umf/pools/pool_disjoint.h>
#include <umf/providers/provider_cuda.h>
#include <umf/providers/provider_level_zero.h>
#include <umf/providers/provider_os_memory.h>

#include <cstddef>

#include "base/abi_check.hpp"
#include "memory/pool/umf_library.hpp"

namespace isthmus {

#define ISTHMUS_UMF_CHECK(member, name, result, arguments) \
  static_assert(matches_abi<decltype(umf_library::member)>(&umf##name));
ISTHMUS_UMF_FUNCTIONS(ISTHMUS_UMF_CHECK, ISTHMUS_UMF_CHECK)

static_assert(int{UMF_RESULT_SUCCESS} == static_cast<int>(umf::result::success));
static_assert(int{UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY} == static_cast<int>(umf::result::out_of_host_memory));
static_assert(int{UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC} ==
              static_cast<int>(umf::result::provider_specific));
static_assert(UMF_MAKE_VERSION(1, 0) == umf::version_1_0);
static_assert(int{UMF_POOL_CREATE_FLAG_DISABLE_TRACKING} == umf::pool_disables_tracking);
static_assert(int{UMF_MEMORY_TYPE_DEVICE} == umf::device_memory_type);
static_assert(int{UMF_OS_RESULT_ERROR_ALLOC_FAILED} == umf::os_allocation_failed);

using native_functions = umf_memory_provider_ops_t;
using umf::provider_functions;
static_assert(sizeof(provider_functions) <= sizeof(native_functions));
static_assert(offsetof(provider_functions, initialize) == offsetof(native_functions, initialize));
static_assert(offsetof(provider_functions, finalize) == offsetof(native_functions, finalize));
static_assert(offsetof(provider_functions, alloc) == offsetof(native_functions, alloc));
static_assert(offsetof(provider_functions, free) == offsetof(native_functions, free));
static_assert(offsetof(provider_functions, last_native_error) ==
              offsetof(native_functions, get_last_native_error));
static_assert(offsetof(provider_functions, recommended_page_size) ==
              offsetof(native_functions, get_recommended_page_size));
static_assert(offsetof(provider_functions, min_page_size) == offsetof(native_functions, get_min_page_size));
static_assert(offsetof(provider_functions, name) == offsetof(native_functions, get_name));

}  // namespace isthmus
