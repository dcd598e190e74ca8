// Fuzz target for call arguments: any operation on any communicator must be accepted, or rejected with a
// reason. Validation may read only the count arrays, which have one entry per rank.
#include <array>
#include <memory>

#include "base/error.hpp"
#include "core/validate.hpp"
#include "fuzz/target.hpp"

namespace {

constexpr int max_ranks = 5;

// Mostly small numbers, which reach more code.
std::uint64_t number(fuzz::reader& in) {
  return in.take<std::uint8_t>() < 200 ? in.take<std::uint8_t>() : in.take<std::uint64_t>();
}

std::unique_ptr<std::uint64_t[]> numbers(fuzz::reader& in, int size) {
  if (in.take<std::uint8_t>() < 30) return nullptr;
  // The exact size, so that a sanitizer detects reads beyond its end.
  auto result = std::make_unique<std::uint64_t[]>(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) result[static_cast<std::size_t>(i)] = number(in);
  return result;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::reader in(data, size);
  isthmus::validation_scope scope{};
  scope.size = 1 + in.take<std::uint8_t>() % max_ranks;
  scope.rank = in.take<std::uint8_t>() % scope.size;
  scope.platform = static_cast<isthmus_platform>(in.take<std::uint8_t>() % ISTHMUS_PLATFORM_COUNT);
  scope.is_grouped = (in.take<std::uint8_t>() & 1) != 0;
  scope.collectives = in.take<std::uint8_t>() < 200 ? 0 : in.take<std::uint32_t>();
  isthmus_operation operation{};
  operation.collective =
      static_cast<isthmus_collective>(static_cast<std::int8_t>(in.take<std::uint8_t>() % 24));
  operation.datatype = static_cast<isthmus_datatype>(static_cast<std::int8_t>(in.take<std::uint8_t>() % 20));
  operation.op = static_cast<isthmus_reduction_op>(in.take<std::uint8_t>() % 8);
  operation.root = in.take<std::uint8_t>() < 200 ? in.take<std::int8_t>() : in.take<std::int32_t>();
  operation.count = number(in);
  operation.send_buf = reinterpret_cast<const void*>(number(in) * 64);
  operation.recv_buf = reinterpret_cast<void*>(number(in) * 64);
  const auto send_counts = numbers(in, scope.size), send_displs = numbers(in, scope.size);
  const auto recv_counts = numbers(in, scope.size), recv_displs = numbers(in, scope.size);
  operation.send_counts = send_counts.get();
  operation.send_displs = send_displs.get();
  operation.recv_counts = recv_counts.get();
  operation.recv_displs = recv_displs.get();
  try {
    isthmus::validate_shape(operation, scope);
    isthmus::validate(operation, scope);
  } catch (const isthmus::error& rejection) {
    fuzz::require(rejection.what()[0] != '\0', "a rejection without a reason");
  }
  return 0;
}
