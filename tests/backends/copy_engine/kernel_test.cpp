// Compiles the kernel source as C++ and runs it on the host, thread by thread, against the oracle: all
// datatypes and operations, any alignment, any rank, in place, special values.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "conformance/test_case.hpp"
#include "oracle/check.hpp"
#include "oracle/inputs.hpp"
#include "oracle/number.hpp"

// Definitions that a device compiler provides. float16 is converted with the compiler's own type, as on HIP.
#define __device__
#define __global__
#define __launch_bounds__(threads)
#define __HIP__
#define ISTHMUS_ELEMENT float32
#define ISTHMUS_OPERATION sum
namespace {
struct simulated_index {
  unsigned x;
};
simulated_index gridDim, blockIdx, blockDim, threadIdx;
}  // namespace
#include "backends/copy_engine/reduction_kernel.cu"

namespace copy_engine_test {
namespace {

using isthmus::copy_engine::combination;
using isthmus::copy_engine::reduction_arguments;

template <typename Element>
void run_thread(isthmus_reduction_op op, const reduction_arguments& arguments) {
  namespace operation = isthmus::copy_engine::operation;
  switch (op) {
#define ISTHMUS_REDUCTION_OP(name, NAME) \
  case ISTHMUS_##NAME: return combination<Element, operation::name>::run(arguments);
#include <isthmus/collectives.def>
    case ISTHMUS_REDUCTION_OP_COUNT: break;
  }
}

void run_thread(isthmus_datatype datatype, isthmus_reduction_op op, const reduction_arguments& arguments) {
  namespace element = isthmus::copy_engine::element;
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME: return run_thread<element::name>(op, arguments);
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
}

void launch(isthmus_datatype datatype, isthmus_reduction_op op, const reduction_arguments& arguments,
            unsigned blocks, unsigned threads) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) run_thread(datatype, op, arguments);
}

// Runs the kernel launch of rank `rank` in a reduce_scatter and checks its result. Returns the error, if any.
std::optional<std::string> run_case(const conformance::test_case& test, int rank, int size, std::size_t shift) {
  const std::size_t width = oracle::bytes_of(test.datatype), bytes = test.count * width;
  const std::size_t row_bytes = (bytes + 255) / 256 * 256;
  const oracle::input_spec inputs = conformance::source_of(test);
  struct alignas(16) unit {
    std::byte bytes[16];
  };
  std::vector<unit> rows(row_bytes / 16 * static_cast<std::size_t>(size)), own(bytes / 16 + 8), out(own.size());
  std::memset(rows.data(), 0xa5, rows.size() * 16);
  std::memset(out.data(), 0xa5, out.size() * 16);
  auto* next = rows.data()->bytes;
  auto* own_input = own.data()->bytes + shift * width;
  for (int source = 0; source < size; ++source) {
    const std::uint64_t first = static_cast<std::uint64_t>(rank) * test.count;
    oracle::fill(inputs, source, first, {source == rank ? own_input : next, bytes});
    if (source != rank) next += row_bytes;
  }
  std::byte* result = test.in_place ? own_input : out.data()->bytes + (shift + test.seed % 2) * width;
  launch(test.datatype, test.op, {rows.data(), row_bytes, own_input, result, test.count, rank, size},
         1 + test.seed % 3, 16 + test.seed % 33);
  if (!test.in_place)
    for (const std::byte* byte = out.data()->bytes; byte < out.data()->bytes + out.size() * 16; ++byte)
      if ((byte < result || byte >= result + bytes) && *byte != std::byte{0xa5})
        return "a byte outside of the result changed";
  return oracle::find_error({inputs, conformance::shape_of(test, size), rank, false}, result);
}

class kernel : public testing::TestWithParam<isthmus_datatype> {};

TEST_P(kernel, matches_the_oracle) {
  conformance::test_case test;
  test.collective = ISTHMUS_REDUCE_SCATTER;
  test.datatype = GetParam();
  for (int op = 0; op < ISTHMUS_REDUCTION_OP_COUNT; ++op)
    for (const std::uint64_t count : {1, 5, 16, 333, 4099}) {
      test.op = static_cast<isthmus_reduction_op>(op);
      test.count = count;
      for (const int size : {2, 3, 7}) {
        test.seed = oracle::mix(static_cast<std::uint64_t>(size), count, op) >> 1;
        test.special = test.seed % 3 == 0;
        test.in_place = test.seed / 3 % 2 == 0;
        const int rank = static_cast<int>(test.seed / 7 % static_cast<std::uint64_t>(size));
        const auto error = run_case(test, rank, size, test.seed / 11 % 2 == 0 ? 0 : 1);
        ASSERT_FALSE(error.has_value())
            << conformance::to_string(test) << " on rank " << rank << " of " << size << ": " << *error;
      }
    }
}

constexpr isthmus_datatype all_types[] = {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) ISTHMUS_##NAME,
#include <isthmus/collectives.def>
};

INSTANTIATE_TEST_SUITE_P(types, kernel, testing::ValuesIn(all_types),
                         [](const auto& info) { return std::string(isthmus_datatype_name(info.param)); });

}  // namespace
}  // namespace copy_engine_test
