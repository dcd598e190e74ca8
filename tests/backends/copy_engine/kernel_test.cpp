// The kernel's own source as C++ on the host, thread by thread, against the oracle: every datatype and
// operation, any alignment, any rank, in place, special values.
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

// What a device compiler has and this one lacks. float16 is converted by the compiler's own type, as on HIP.
#define __device__
#define __global__
#define __launch_bounds__(threads)
#define __HIP__
#define ISTHMUS_ELEMENT float32
#define ISTHMUS_OPERATION sum
namespace {
struct three_numbers {
  unsigned x;
};
three_numbers gridDim, blockIdx, blockDim, threadIdx;
}  // namespace
#include "backends/copy_engine/reduction_kernel.cu"

namespace copy_engine_test {
namespace {

using isthmus::copy_engine::combination;
using isthmus::copy_engine::reduction_arguments;

template <typename Element>
void run_thread(isthmus_reduction_op op, const reduction_arguments& what) {
  namespace operation = isthmus::copy_engine::operation;
  switch (op) {
#define ISTHMUS_REDUCTION_OP(name, NAME) \
  case ISTHMUS_##NAME: return combination<Element, operation::name>::run(what);
#include <isthmus/collectives.def>
    case ISTHMUS_REDUCTION_OP_COUNT: break;
  }
}

void run_thread(isthmus_datatype datatype, isthmus_reduction_op op, const reduction_arguments& what) {
  namespace element = isthmus::copy_engine::element;
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME: return run_thread<element::name>(op, what);
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
}

void launch(isthmus_datatype datatype, isthmus_reduction_op op, const reduction_arguments& what,
            unsigned blocks, unsigned threads) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) run_thread(datatype, op, what);
}

// Rank `rank`'s launch for a reduce_scatter of all ranks; what is wrong with its result, or nothing.
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
  auto* mine = own.data()->bytes + shift * width;
  for (int source = 0; source < size; ++source) {
    const std::uint64_t first = static_cast<std::uint64_t>(rank) * test.count;
    oracle::fill(inputs, source, first, {source == rank ? mine : next, bytes});
    if (source != rank) next += row_bytes;
  }
  std::byte* result = test.in_place ? mine : out.data()->bytes + (shift + test.seed % 2) * width;
  launch(test.datatype, test.op, {rows.data(), row_bytes, mine, result, test.count, rank, size},
         1 + test.seed % 3, 16 + test.seed % 33);
  if (!test.in_place)
    for (const std::byte* at = out.data()->bytes; at < out.data()->bytes + out.size() * 16; ++at)
      if ((at < result || at >= result + bytes) && *at != std::byte{0xa5})
        return "a byte beside the result changed";
  return oracle::find_error({inputs, conformance::shape_of(test, size), rank, false}, result);
}

class kernel : public testing::TestWithParam<isthmus_datatype> {};

TEST_P(kernel, gives_what_the_oracle_says) {
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
