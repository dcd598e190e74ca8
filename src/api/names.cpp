// C entry points that need no communicator: names, sizes, version, last error and interrupt check.
#include <isthmus/interrupt.h>
#include <isthmus/isthmus.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/tables.hpp"

namespace {

bool in_range(int value, int count) { return value >= 0 && value < count; }

}  // namespace

const char* isthmus_version(void) {
  return ISTHMUS_STRING(ISTHMUS_VERSION_MAJOR) "." ISTHMUS_STRING(ISTHMUS_VERSION_MINOR) "." ISTHMUS_STRING(
      ISTHMUS_VERSION_PATCH);
}

const char* isthmus_collective_name(isthmus_collective collective) {
  return in_range(collective, ISTHMUS_COLLECTIVE_COUNT) ? isthmus::row_of(collective).name : nullptr;
}

const char* isthmus_datatype_name(isthmus_datatype datatype) {
  if (!in_range(datatype, ISTHMUS_DATATYPE_COUNT)) return nullptr;
  return isthmus::collective_table::datatypes[static_cast<std::size_t>(datatype)].name;
}

size_t isthmus_datatype_bytes(isthmus_datatype datatype) {
  return in_range(datatype, ISTHMUS_DATATYPE_COUNT) ? isthmus::bytes_of(datatype) : 0;
}

const char* isthmus_reduction_op_name(isthmus_reduction_op op) {
  return in_range(op, ISTHMUS_REDUCTION_OP_COUNT) ? isthmus::collective_table::op_names[op] : nullptr;
}

const char* isthmus_platform_name(isthmus_platform platform) {
  return in_range(platform, ISTHMUS_PLATFORM_COUNT) ? isthmus::collective_table::platform_names[platform]
                                                    : nullptr;
}

const char* isthmus_status_name(isthmus_status status) {
  switch (status) {
    case ISTHMUS_SUCCESS: return "success";
    case ISTHMUS_ERROR_INVALID_ARGUMENT: return "invalid_argument";
    case ISTHMUS_ERROR_INVALID_USAGE: return "invalid_usage";
    case ISTHMUS_ERROR_UNSUPPORTED: return "unsupported";
    case ISTHMUS_ERROR_CONFIG: return "config";
    case ISTHMUS_ERROR_MISMATCH: return "mismatch";
    case ISTHMUS_ERROR_OUT_OF_MEMORY: return "out_of_memory";
    case ISTHMUS_ERROR_SYSTEM: return "system";
    case ISTHMUS_ERROR_BACKEND: return "backend";
    case ISTHMUS_ERROR_REMOTE: return "remote";
    case ISTHMUS_ERROR_TIMEOUT: return "timeout";
    case ISTHMUS_ERROR_ABORTED: return "aborted";
    case ISTHMUS_ERROR_INTERNAL: return "internal";
  }
  return nullptr;
}

void isthmus_last_error(isthmus_error_info* info) {
  if (info != nullptr) *info = isthmus::last_error();
}

size_t isthmus_last_error_ranks(int* ranks, size_t capacity) {
  const auto failed_ranks = isthmus::last_error().failed_ranks();
  if (ranks != nullptr) std::copy_n(failed_ranks.begin(), std::min(capacity, failed_ranks.size()), ranks);
  return failed_ranks.size();
}

isthmus_status isthmus_set_interrupt_check(isthmus_interrupt_check check, void* context) {
  isthmus::own_interrupt = {check, context, {}};
  return ISTHMUS_SUCCESS;
}
