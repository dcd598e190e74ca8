// Fault injection: preloaded before the library, it corrupts results in one of the ways that the suite must
// detect. tests/conformance/CMakeLists.txt checks that the suite fails with it.
#include <dlfcn.h>
#include <isthmus/isthmus.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

using enqueue_function = isthmus_status (*)(isthmus_communicator, const isthmus_operation*);

unsigned char* bytes_at(const void* buffer) {
  return const_cast<unsigned char*>(static_cast<const unsigned char*>(buffer));
}

bool is_last_rank(isthmus_communicator communicator) {
  int rank = 0;
  int size = 0;
  isthmus_communicator_rank(communicator, &rank);
  isthmus_communicator_size(communicator, &size);
  return rank == size - 1;
}

void corrupt(std::string_view fault, const isthmus_operation& operation) {
  const std::uint64_t bytes = operation.count * isthmus_datatype_bytes(operation.datatype);
  const bool has_data = bytes > 0 && operation.recv_buf != nullptr;
  if (fault == "bit" && has_data && operation.collective == ISTHMUS_ALLREDUCE)
    *bytes_at(operation.recv_buf) ^= 1;
  if (fault == "stray" && has_data && operation.collective == ISTHMUS_BROADCAST)
    bytes_at(operation.recv_buf)[bytes] = 0;
  if (fault == "input" && bytes > 0 && operation.collective == ISTHMUS_GATHER)
    *bytes_at(operation.send_buf) ^= 1;
  if (fault == "gap" && operation.collective == ISTHMUS_ALLTOALLV && operation.recv_displs[0] > 0)
    *bytes_at(operation.recv_buf) = 0;
}

}  // namespace

extern "C" isthmus_status isthmus_enqueue(isthmus_communicator communicator,
                                          const isthmus_operation* operation) {
  static const auto real = reinterpret_cast<enqueue_function>(dlsym(RTLD_NEXT, "isthmus_enqueue"));
  static const char* fault = std::getenv("ISTHMUS_TEST_FAULT");
  const isthmus_status status = real(communicator, operation);
  if (status == ISTHMUS_SUCCESS && fault != nullptr && is_last_rank(communicator)) corrupt(fault, *operation);
  return status;
}
