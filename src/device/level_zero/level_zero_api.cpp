#include "device/level_zero/level_zero_api.hpp"

#include "base/dynamic_library.hpp"
#include "base/error.hpp"

namespace isthmus {
namespace {

isthmus_status to_status(ze_result_t result) {
  switch (result) {
    case ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY:
    case ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY: return ISTHMUS_ERROR_OUT_OF_MEMORY;
    case ZE_RESULT_ERROR_UNSUPPORTED_FEATURE: return ISTHMUS_ERROR_UNSUPPORTED;
    default: return ISTHMUS_ERROR_BACKEND;  // the native code is more specific
  }
}

}  // namespace

std::unique_ptr<level_zero_api> level_zero_api::load(std::string& reason) {
  const library_search_request request{.variable = "ISTHMUS_LEVEL_ZERO_LIBRARY",
                                       .names = {"libze_loader.so.1"},
                                       .wheel_folders = {"../.."},
                                       .system_folders = {}};
  const dynamic_library library = dynamic_library::open(request, reason);
  if (!library) {
    reason = "the Level Zero loader could not be loaded: " + reason;
    return nullptr;
  }
  auto api = std::make_unique<level_zero_api>();
  symbol_loader loader(library, "ze");
#define ISTHMUS_LEVEL_ZERO_FUNCTION(member, name) loader.load_required(api->member, #name);
#define ISTHMUS_LEVEL_ZERO_OPTIONAL_FUNCTION(member, name) loader.load_optional(api->member, #name);
#include "device/level_zero/functions.def"
  loader.load_optional(api->mem_put_ipc_handle, "MemPutIpcHandle");
  if (loader.first_missing().empty()) return api;
  reason = library.path() + " lacks " + loader.first_missing() + "; install Level Zero 1.0 or newer";
  return nullptr;
}

void level_zero_api::check(ze_result_t result, const char* location, const std::string& call) {
  if (result == ZE_RESULT_SUCCESS) return;
  throw make_error(to_status(result), location, fmt::format("{} failed: {}", call, text(result)), "",
                   static_cast<std::int64_t>(result));
}

// Names only the codes that memory, copy and event functions can return. error_info::native_code
// contains the others.
const char* level_zero_api::text(ze_result_t result) {
  switch (result) {
    case ZE_RESULT_SUCCESS: return "success";
    case ZE_RESULT_NOT_READY: return "not ready";
    case ZE_RESULT_ERROR_DEVICE_LOST: return "device lost";
    case ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY: return "out of host memory";
    case ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY: return "out of device memory";
    case ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS: return "insufficient permissions";
    case ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE: return "dependency unavailable";
    case ZE_RESULT_ERROR_UNINITIALIZED: return "no driver";
    case ZE_RESULT_ERROR_UNSUPPORTED_VERSION: return "unsupported version";
    case ZE_RESULT_ERROR_UNSUPPORTED_FEATURE: return "unsupported feature";
    case ZE_RESULT_ERROR_INVALID_ARGUMENT: return "invalid argument";
    case ZE_RESULT_ERROR_INVALID_NULL_HANDLE: return "null handle";
    case ZE_RESULT_ERROR_INVALID_NULL_POINTER: return "null pointer";
    case ZE_RESULT_ERROR_INVALID_SIZE: return "invalid size";
    case ZE_RESULT_ERROR_UNSUPPORTED_SIZE: return "unsupported size";
    case ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT: return "unsupported alignment";
    case ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT: return "invalid synchronization object";
    case ZE_RESULT_ERROR_INVALID_ENUMERATION: return "invalid enumeration";
    case ZE_RESULT_ERROR_OVERLAPPING_REGIONS: return "overlapping regions";
    default: return "error";
  }
}

}  // namespace isthmus
