#include "runtime/tables.hpp"

#include <isthmus/isthmus.h>

namespace isthmus {
namespace {

// Mean block of an allgatherv, rounded up: all ranks know all counts, so all get the same.
std::uint64_t mean_count(const isthmus_operation& operation, int size) {
  if (operation.recv_counts == nullptr) return operation.count;  // explain without arrays
  std::uint64_t total = 0;
  for (int rank = 0; rank < size; ++rank) total += operation.recv_counts[rank];
  const auto ranks = static_cast<std::uint64_t>(size);
  return total / ranks + (total % ranks != 0 ? 1 : 0);
}

}  // namespace

std::optional<std::uint64_t> selection_bytes(const isthmus_operation& operation, int size) {
  const auto ranks = static_cast<std::uint64_t>(size);
  const std::uint64_t width = bytes_of(operation.datatype);
  switch (operation.collective) {
    case ISTHMUS_BROADCAST:
    case ISTHMUS_REDUCE:
    case ISTHMUS_ALLREDUCE:
    case ISTHMUS_ALLGATHER:
    case ISTHMUS_SEND:
    case ISTHMUS_RECV: return operation.count * width;
    case ISTHMUS_REDUCE_SCATTER:
    case ISTHMUS_GATHER:
    case ISTHMUS_SCATTER:
    case ISTHMUS_ALLTOALL: return operation.count * width * ranks;
    case ISTHMUS_ALLGATHERV: return mean_count(operation, size) * width;
    case ISTHMUS_GATHERV:
    case ISTHMUS_SCATTERV:
    case ISTHMUS_ALLTOALLV: return std::nullopt;
    case ISTHMUS_BARRIER: return 0;
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  return std::nullopt;
}

isthmus_operation agreed_operation(const isthmus_operation& operation, int size) {
  isthmus_operation agreed{};
  agreed.collective = operation.collective;
  agreed.datatype = operation.datatype;
  const collective_row& row = row_of(operation.collective);
  if (row.reduces) agreed.op = operation.op;
  if (row.peer != peer_kind::none) agreed.root = operation.root;
  const bool irregular = row.send_extent == extent::counts || row.recv_extent == extent::counts;
  if (!irregular) agreed.count = operation.count;
  if (operation.collective == ISTHMUS_ALLGATHERV) agreed.count = mean_count(operation, size);
  return agreed;
}

}  // namespace isthmus

namespace {

template <std::size_t Size>
constexpr const char* lookup(const std::array<const char*, Size>& names, int value) {
  return value >= 0 && static_cast<std::size_t>(value) < Size ? names[static_cast<std::size_t>(value)]
                                                              : nullptr;
}

constexpr std::array<const char*, ISTHMUS_REDUCTION_OP_COUNT> op_names{
#define ISTHMUS_REDUCTION_OP(name, NAME) #name,
#include <isthmus/collectives.def>
};
constexpr std::array<const char*, ISTHMUS_PLATFORM_COUNT> platform_names{
#define ISTHMUS_PLATFORM(name, NAME) #name,
#include <isthmus/collectives.def>
};

#define VERSION_TEXT_(x) #x
#define VERSION_TEXT(x) VERSION_TEXT_(x)
constexpr const char* version_text = VERSION_TEXT(ISTHMUS_VERSION_MAJOR) "." VERSION_TEXT(
    ISTHMUS_VERSION_MINOR) "." VERSION_TEXT(ISTHMUS_VERSION_PATCH);

bool in_range(int value, int count) { return value >= 0 && value < count; }

}  // namespace

const char* isthmus_version(void) { return version_text; }

const char* isthmus_collective_name(isthmus_collective collective) {
  return in_range(collective, ISTHMUS_COLLECTIVE_COUNT) ? isthmus::row_of(collective).name : nullptr;
}

const char* isthmus_datatype_name(isthmus_datatype datatype) {
  if (!in_range(datatype, ISTHMUS_DATATYPE_COUNT)) return nullptr;
  return isthmus::table_words::datatypes[static_cast<std::size_t>(datatype)].name;
}

size_t isthmus_datatype_bytes(isthmus_datatype datatype) {
  return in_range(datatype, ISTHMUS_DATATYPE_COUNT) ? isthmus::bytes_of(datatype) : 0;
}

const char* isthmus_reduction_op_name(isthmus_reduction_op op) { return lookup(op_names, op); }

const char* isthmus_platform_name(isthmus_platform platform) { return lookup(platform_names, platform); }

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
