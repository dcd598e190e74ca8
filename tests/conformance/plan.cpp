#include "plan.hpp"

#include <algorithm>

#include "oracle/number.hpp"

namespace conformance {
namespace {

using oracle::mix;

constexpr std::uint64_t small_counts[] = {0, 1, 17};
constexpr std::uint64_t large_counts[] = {2, 33, 255, 1000, 4099, 32771};

bool is_floating(isthmus_datatype datatype) {
  return oracle::kind_of(datatype) == oracle::datatype_kind::floating;
}

// Dimensions that are not part of the product are drawn from the seed.
test_case complete(test_case test, std::uint64_t seed, int size) {
  test.seed = mix(seed, 1) >> 1;
  test.root = static_cast<int>(mix(seed, 2) % static_cast<std::uint64_t>(size));
  test.heap = mix(seed, 3) % 3 == 0;
  test.special = reduces(test.collective) && is_floating(test.datatype) && mix(seed, 4) % 3 == 0;
  return test;
}

std::vector<isthmus_reduction_op> ops_of(isthmus_collective collective) {
  std::vector<isthmus_reduction_op> ops;
  for (int op = 0; op < (reduces(collective) ? ISTHMUS_REDUCTION_OP_COUNT : 1); ++op)
    ops.push_back(static_cast<isthmus_reduction_op>(op));
  return ops;
}

std::vector<test_case> full_product() {
  std::vector<test_case> all;
  for (const isthmus_collective collective : collectives())
    for (int datatype = 0; datatype < ISTHMUS_DATATYPE_COUNT; ++datatype)
      for (const isthmus_reduction_op op : ops_of(collective))
        for (int in_place = 0; in_place <= (can_be_in_place(collective) ? 1 : 0); ++in_place)
          for (const std::uint64_t count : small_counts) {
            if (collective == ISTHMUS_BARRIER && (count != 0 || datatype != 0)) continue;
            all.push_back({collective, static_cast<isthmus_datatype>(datatype), op, count, 0, in_place == 1});
          }
  return all;
}

// Counts whose buffers are just below, at and just above a boundary, for one block or for all blocks.
std::uint64_t near_boundary(std::uint64_t boundary, std::uint64_t seed, std::size_t width, int size) {
  const std::uint64_t blocks = mix(seed, 5) % 2 == 0 ? 1 : static_cast<std::uint64_t>(size);
  const std::uint64_t count = boundary / (width * blocks);
  const std::uint64_t shifted = count + mix(seed, 6) % 3;  // count - 1, count, count + 1
  return shifted > 0 ? shifted - 1 : 0;
}

test_case draw(const plan_options& options, std::uint64_t seed, int size,
               const std::vector<std::uint64_t>& boundaries) {
  const auto all = collectives();
  test_case test;
  test.collective = all[mix(seed, 10) % all.size()];
  // Half of the draws use the collectives with the most algorithms.
  if (mix(seed, 11) % 2 == 0)
    test.collective = static_cast<isthmus_collective>(mix(seed, 12) % (ISTHMUS_ALLGATHER + 1));
  test.datatype = static_cast<isthmus_datatype>(mix(seed, 13) % ISTHMUS_DATATYPE_COUNT);
  const auto ops = ops_of(test.collective);
  test.op = ops[mix(seed, 14) % ops.size()];
  test.in_place = can_be_in_place(test.collective) && mix(seed, 15) % 2 == 0;
  const std::size_t width = oracle::bytes_of(test.datatype);
  test.count = large_counts[mix(seed, 16) % std::size(large_counts)];
  if (!boundaries.empty() && mix(seed, 17) % 2 == 0)
    test.count = near_boundary(boundaries[mix(seed, 18) % boundaries.size()], seed, width, size);
  test.count = std::min(test.count, options.largest_bytes / width);
  if (test.collective == ISTHMUS_BARRIER) test.count = 0;
  return complete(test, seed, size);
}

std::vector<test_case> draw_batch(const plan_options& options, std::uint64_t seed, int size, int length) {
  plan_options small = options;
  small.largest_bytes = 1u << 16;
  std::vector<test_case> batch;
  for (int i = 0; i < length; ++i) {
    batch.push_back(draw(small, mix(seed, 20, static_cast<std::uint64_t>(i)), size, {}));
    batch.back().heap = mix(seed, 21) % 2 == 0;
  }
  return batch;
}

// A sixth of the product that contains every collective x datatype x operation once. Along each of these three
// dimensions, the in-place forms and counts rotate, starting with `shift`, so that every combination with a
// form and count occurs.
bool is_in_cover(const test_case& test, std::uint64_t shift) {
  constexpr std::uint64_t counts = std::size(small_counts);
  const auto count = std::find(std::begin(small_counts), std::end(small_counts), test.count);
  const auto form = static_cast<std::uint64_t>(count - std::begin(small_counts)) + (test.in_place ? counts : 0);
  const std::uint64_t forms = can_be_in_place(test.collective) ? 2 * counts : counts;
  const auto phase =
      std::uint64_t{test.collective} + std::uint64_t{test.datatype} + std::uint64_t{test.op} + shift;
  return test.collective == ISTHMUS_BARRIER || phase % forms == form;
}

}  // namespace

plan make_plan(const plan_options& options, int size, const std::vector<std::uint64_t>& boundaries) {
  plan result;
  std::uint64_t index = 0;
  for (const test_case& test : full_product()) {
    ++index;
    if (options.is_covering && !is_in_cover(test, options.seed + static_cast<std::uint64_t>(size))) continue;
    if (mix(options.seed, 30, index) % static_cast<std::uint64_t>(options.sampling_stride) == 0)
      result.singles.push_back(complete(test, mix(options.seed, 31, index), size));
  }
  for (int i = 0; i < options.samples; ++i)
    result.singles.push_back(
        draw(options, mix(options.seed, 32, static_cast<std::uint64_t>(i)), size, boundaries));
  for (int i = 0; i < options.batches; ++i) {
    const auto number = static_cast<std::uint64_t>(i);
    result.back_to_back.push_back(draw_batch(options, mix(options.seed, 33, number), size, 30));
    result.grouped.push_back(draw_batch(options, mix(options.seed, 34, number), size, 2 + i % 4));
  }
  return result;
}

}  // namespace conformance
