// The store chooser with a simulated clock: the test defines the cost of each mode, and no time passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "backends/shm/stores.hpp"
#include "local_groups.hpp"

namespace shm_test {
namespace {

using namespace isthmus::shm;
using duration = store_chooser::clock::duration;

constexpr int ranks = 2;

store_chooser::clock::time_point simulated_now;  // current time of the simulated clock
std::uint64_t clock_reads;                       // number of times that the clock was read

store_chooser::clock::time_point read_clock() {
  ++clock_reads;
  return simulated_now;
}

// Duration of a call in each mode.
struct costs {
  duration cached, streaming;
  duration duration_of(store_mode mode) const { return mode == store_mode::cached ? cached : streaming; }
};

// Simulates the calls of two ranks of this process, which have real segments. The first calls after a
// mode change take longer, because the slots are as the previous mode left them. Times vary, and some
// calls are disturbed.
class machine {
 public:
  explicit machine(std::uint64_t seed) : m_random(seed) {
    for (int r = 0; r < ranks; ++r)
      m_choosers.push_back(std::make_unique<store_chooser>(m_groups[r], read_clock));
    clock_reads = 0;
  }

  // Runs one call on all ranks and returns the mode of the timing rank.
  store_mode call(isthmus_collective collective, std::uint64_t bytes, int timing_rank,
                  const costs& call_costs) {
    std::array<store_mode, ranks> modes{};
    for (int r = 0; r < ranks; ++r)
      modes[index(r)] = m_choosers[index(r)]->begin(collective, bytes, timing_rank);
    const std::uint64_t new_numbers =
        random_between(1, 2);  // few, so that slots keep their previous state for long
    for (int r = 0; r < ranks; ++r) m_groups[r].allocate_sequence_numbers(new_numbers);
    duration time = std::max(call_costs.duration_of(modes[0]), call_costs.duration_of(modes[1]));
    time += time * static_cast<int>(random_between(0, 30)) / 1000;
    if (modes[0] != m_last_mode || modes[1] != m_last_mode) m_last_change = m_groups[0].next_sequence_number();
    if (m_groups[0].next_sequence_number() < m_last_change + m_groups[0].sizes().depth) time *= 3;
    if (random_between(1, 20) == 1) time *= 10;
    m_last_mode = modes[index(timing_rank)];
    simulated_now += time;
    // whichever rank ends first, its peers see a new hint in the next call at the latest
    for (int r = 0; r < ranks; ++r) m_choosers[index(r)]->end();
    return m_last_mode;
  }

  // Returns how many of `calls` calls use the mode.
  std::uint64_t count(store_mode mode, std::uint64_t calls, isthmus_collective collective, std::uint64_t bytes,
                      int timing_rank, const costs& call_costs) {
    std::uint64_t matches = 0;
    for (std::uint64_t i = 0; i < calls; ++i)
      matches += call(collective, bytes, timing_rank, call_costs) == mode ? 1 : 0;
    return matches;
  }

  std::uint64_t random_between(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(m_random);
  }
  // The other mode costs a random percentage more.
  costs make_costs(store_mode mode, std::uint64_t min_pct, std::uint64_t max_pct) {
    const duration low_cost(random_between(1'000, 1'000'000));
    const duration high_cost = low_cost + low_cost * static_cast<int>(random_between(min_pct, max_pct)) / 100;
    return mode == store_mode::cached ? costs{low_cost, high_cost} : costs{high_cost, low_cost};
  }
  store_mode random_mode() { return random_between(0, 1) == 0 ? store_mode::cached : store_mode::streaming; }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  std::mt19937_64 m_random;
  local_groups m_groups{ranks};
  std::vector<std::unique_ptr<store_chooser>> m_choosers;
  store_mode m_last_mode = store_mode::cached;
  std::uint64_t m_last_change = 0;
};

constexpr std::uint64_t settling_calls = 3000;  // calls: enough for the longest pause and a trial

class store_chooser_test : public testing::TestWithParam<std::uint64_t> {};

TEST_P(store_chooser_test, settles_on_the_cheaper_mode) {
  machine simulation(GetParam());
  const auto bytes = simulation.random_between(1, 1 << 30);
  const int timing_rank = static_cast<int>(simulation.random_between(0, ranks - 1));
  const store_mode cheaper = simulation.random_mode();
  const costs call_costs = simulation.make_costs(cheaper, 30, 400);
  simulation.count(cheaper, settling_calls, ISTHMUS_ALLREDUCE, bytes, timing_rank, call_costs);
  EXPECT_GE(simulation.count(cheaper, 1000, ISTHMUS_ALLREDUCE, bytes, timing_rank, call_costs), 970u);
}

TEST_P(store_chooser_test, adapts_when_costs_change) {
  machine simulation(GetParam());
  for (const store_mode cheaper : {store_mode::cached, store_mode::streaming, store_mode::cached}) {
    const costs call_costs = simulation.make_costs(cheaper, 30, 400);
    simulation.count(cheaper, settling_calls, ISTHMUS_BROADCAST, 4096, 1, call_costs);
    EXPECT_GE(simulation.count(cheaper, 1000, ISTHMUS_BROADCAST, 4096, 1, call_costs), 970u);
  }
}

TEST_P(store_chooser_test, keeps_mode_if_difference_is_small) {
  machine simulation(GetParam());
  const costs call_costs = simulation.make_costs(simulation.random_mode(), 0, 5);
  EXPECT_GE(simulation.count(store_mode::cached, settling_calls, ISTHMUS_ALLGATHER, 1 << 20, 0, call_costs),
            settling_calls * 9 / 10);
}

TEST_P(store_chooser_test, chooses_separately_per_kind_of_call) {
  machine simulation(GetParam());
  struct kind {
    isthmus_collective collective;
    std::uint64_t bytes;
    int timing_rank;
    store_mode cheaper;
    costs call_costs;
  };
  std::vector<kind> kinds;
  for (const isthmus_collective collective : {ISTHMUS_GATHER, ISTHMUS_SCATTER})
    for (const std::uint64_t bytes : {std::uint64_t{1000}, std::uint64_t{100'000}})
      for (int timing_rank = 0; timing_rank < ranks; ++timing_rank) {
        const store_mode cheaper = simulation.random_mode();
        kinds.push_back({collective, bytes, timing_rank, cheaper, simulation.make_costs(cheaper, 30, 400)});
      }
  // Repeats each kind many times in a row, because mode changes between kinds also leave slots in
  // the previous mode.
  for (std::uint64_t round = 0; round < 40; ++round)
    for (const kind& each : kinds)
      simulation.count(each.cheaper, 100, each.collective, each.bytes, each.timing_rank, each.call_costs);
  for (const kind& each : kinds)
    EXPECT_GE(
        simulation.count(each.cheaper, 1000, each.collective, each.bytes, each.timing_rank, each.call_costs),
        950u);
}

TEST_P(store_chooser_test, rarely_reads_the_clock) {
  machine simulation(GetParam());
  const costs call_costs = simulation.make_costs(store_mode::cached, 30, 400);  // the initial mode
  simulation.count(store_mode::cached, settling_calls, ISTHMUS_REDUCE_SCATTER, 64, 0, call_costs);
  clock_reads = 0;
  simulation.count(store_mode::cached, 2000, ISTHMUS_REDUCE_SCATTER, 64, 0, call_costs);
  EXPECT_GT(clock_reads, 0u);
  EXPECT_LE(clock_reads, 3 * 2 * (3 + 3));  // trials, times two reads per call, times three calls in each mode
}

TEST_P(store_chooser_test, large_calls_try_the_other_mode_early) {
  machine simulation(GetParam());
  const auto bytes = simulation.random_between(1 << 20, 1 << 30);
  const costs call_costs = simulation.make_costs(store_mode::streaming, 100, 400);
  EXPECT_GE(simulation.count(store_mode::streaming, 20, ISTHMUS_BROADCAST, bytes, 1, call_costs), 7u);
}

TEST_P(store_chooser_test, new_sizes_start_in_the_mode_of_smaller_ones) {
  machine simulation(GetParam());
  const costs call_costs = simulation.make_costs(store_mode::streaming, 100, 400);
  simulation.count(store_mode::streaming, settling_calls, ISTHMUS_REDUCE, 1 << 18, 0, call_costs);
  // until a trial uses the other mode
  int calls = 0;
  while (simulation.count(store_mode::streaming, 1, ISTHMUS_REDUCE, 1 << 18, 0, call_costs) == 1)
    ASSERT_LT(++calls, 1100);
  EXPECT_EQ(simulation.count(store_mode::streaming, 16, ISTHMUS_REDUCE, 1 << 26, 0, call_costs), 16u);
  // other collectives and smaller sizes are not affected
  EXPECT_EQ(simulation.count(store_mode::cached, 2, ISTHMUS_GATHER, 1 << 26, 0, call_costs), 2u);
  EXPECT_EQ(simulation.count(store_mode::cached, 2, ISTHMUS_REDUCE, 1 << 10, 0, call_costs), 2u);
}

INSTANTIATE_TEST_SUITE_P(seeds, store_chooser_test, testing::Range<std::uint64_t>(1, 21));

}  // namespace
}  // namespace shm_test
