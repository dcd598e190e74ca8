// The chooser of store forms, on a clock that the test moves: what a form costs is the test's, no time passes.
#include "backends/shm/store_chooser.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

namespace shm_test {
namespace {

using namespace isthmus::shm;
using duration = store_chooser::clock::duration;

constexpr int ranks = 2;

store_chooser::clock::time_point told;  // what the clock says
std::uint64_t looks;                    // how often it was asked

store_chooser::clock::time_point tell() {
  ++looks;
  return told;
}

// What a call takes in each form.
struct costs {
  duration cached, streaming;
  duration of(store_mode form) const { return form == store_mode::cached ? cached : streaming; }
};

// Two ranks of this process with real segments, and a machine that answers for their calls: the first calls
// after a change find the slots as the form before left them and take longer, times vary, and some calls are
// disturbed.
class machine {
 public:
  explicit machine(std::uint64_t seed) : m_random(seed) {
    const geometry chosen{.slot_bytes = 4096, .packet_lines = 4, .depth = 8, .cell_bytes = 64, .cells = 2};
    std::vector<std::shared_ptr<isthmus::shared_segment>> segments;
    for (int r = 0; r < ranks; ++r)
      segments.push_back(isthmus::shared_segment::create(segment_layout(chosen, ranks).bytes()));
    for (int r = 0; r < ranks; ++r) {
      isthmus_backend_context context{};
      context.rank = r;
      context.size = context.process_size = ranks;
      context.process_of = m_process_of.data();
      connection met;
      met.sizes = chosen;
      met.segments = segments;
      m_groups.push_back(std::make_unique<node_group>(context, std::move(met)));
      m_choosers.push_back(std::make_unique<store_chooser>(*m_groups.back(), tell));
    }
    looks = 0;
  }

  // One call on all ranks. The form is the judge's.
  store_mode call(isthmus_collective collective, std::uint64_t bytes, int timing_rank, const costs& taken) {
    std::array<store_mode, ranks> forms{};
    for (int r = 0; r < ranks; ++r) forms[index(r)] = m_choosers[index(r)]->begin(collective, bytes, timing_rank);
    const std::uint64_t taken_now = pick(1, 2);  // few, so that slots stay for long what they were
    for (const auto& each : m_groups) each->allocate_sequence_numbers(taken_now);
    duration time = std::max(taken.of(forms[0]), taken.of(forms[1]));
    time += time * static_cast<int>(pick(0, 30)) / 1000;
    if (forms[0] != m_last || forms[1] != m_last) m_changed = m_groups[0]->next_sequence_number();
    if (m_groups[0]->next_sequence_number() < m_changed + m_groups[0]->sizes().depth) time *= 3;
    if (pick(1, 20) == 1) time *= 10;
    m_last = forms[index(timing_rank)];
    told += time;
    // whoever ends first, the others see a new wish in the next call at the latest
    for (int r = 0; r < ranks; ++r) m_choosers[index(r)]->end();
    return m_last;
  }

  // How many of so many calls are in the form.
  std::uint64_t count(store_mode form, std::uint64_t calls, isthmus_collective collective, std::uint64_t bytes,
                      int timing_rank, const costs& taken) {
    std::uint64_t found = 0;
    for (std::uint64_t i = 0; i < calls; ++i) found += call(collective, bytes, timing_rank, taken) == form ? 1 : 0;
    return found;
  }

  std::uint64_t pick(std::uint64_t least, std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(least, most)(m_random);
  }
  // The other form costs so many per cent more.
  costs prefer(store_mode form, std::uint64_t least_pct, std::uint64_t most_pct) {
    const duration less(pick(1'000, 1'000'000));
    const duration more = less + less * static_cast<int>(pick(least_pct, most_pct)) / 100;
    return form == store_mode::cached ? costs{less, more} : costs{more, less};
  }
  store_mode any_form() { return pick(0, 1) == 0 ? store_mode::cached : store_mode::streaming; }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  std::mt19937_64 m_random;
  std::array<int, ranks> m_process_of{};
  std::vector<std::unique_ptr<node_group>> m_groups;
  std::vector<std::unique_ptr<store_chooser>> m_choosers;
  store_mode m_last = store_mode::cached;
  std::uint64_t m_changed = 0;
};

constexpr std::uint64_t enough = 3000;  // calls: the longest pause, a trial, and time to notice both

class store_chooser_test : public testing::TestWithParam<std::uint64_t> {};

TEST_P(store_chooser_test, settles_on_the_cheaper_form) {
  machine run(GetParam());
  const auto bytes = run.pick(1, 1 << 30);
  const int timing_rank = static_cast<int>(run.pick(0, ranks - 1));
  const store_mode cheaper = run.any_form();
  const costs taken = run.prefer(cheaper, 30, 400);
  run.count(cheaper, enough, ISTHMUS_ALLREDUCE, bytes, timing_rank, taken);
  EXPECT_GE(run.count(cheaper, 1000, ISTHMUS_ALLREDUCE, bytes, timing_rank, taken), 970u);
}

TEST_P(store_chooser_test, follows_when_the_cores_move) {
  machine run(GetParam());
  for (const store_mode cheaper : {store_mode::cached, store_mode::streaming, store_mode::cached}) {
    const costs taken = run.prefer(cheaper, 30, 400);
    run.count(cheaper, enough, ISTHMUS_BROADCAST, 4096, 1, taken);
    EXPECT_GE(run.count(cheaper, 1000, ISTHMUS_BROADCAST, 4096, 1, taken), 970u);
  }
}

TEST_P(store_chooser_test, stays_where_the_difference_is_small) {
  machine run(GetParam());
  const costs taken = run.prefer(run.any_form(), 0, 5);
  EXPECT_GE(run.count(store_mode::cached, enough, ISTHMUS_ALLGATHER, 1 << 20, 0, taken), enough * 9 / 10);
}

TEST_P(store_chooser_test, tells_kinds_of_calls_apart) {
  machine run(GetParam());
  struct kind {
    isthmus_collective collective;
    std::uint64_t bytes;
    int timing_rank;
    store_mode cheaper;
    costs taken;
  };
  std::vector<kind> kinds;
  for (const isthmus_collective collective : {ISTHMUS_GATHER, ISTHMUS_SCATTER})
    for (const std::uint64_t bytes : {std::uint64_t{1000}, std::uint64_t{100'000}})
      for (int timing_rank = 0; timing_rank < ranks; ++timing_rank) {
        const store_mode cheaper = run.any_form();
        kinds.push_back({collective, bytes, timing_rank, cheaper, run.prefer(cheaper, 30, 400)});
      }
  // each kind many times in a row now and then: a change of forms among kinds leaves slots behind, too
  for (std::uint64_t turn = 0; turn < 40; ++turn)
    for (const kind& each : kinds)
      run.count(each.cheaper, 100, each.collective, each.bytes, each.timing_rank, each.taken);
  for (const kind& each : kinds)
    EXPECT_GE(run.count(each.cheaper, 1000, each.collective, each.bytes, each.timing_rank, each.taken), 950u);
}

TEST_P(store_chooser_test, seldom_looks_at_the_clock) {
  machine run(GetParam());
  const costs taken = run.prefer(store_mode::cached, 30, 400);  // the form at the beginning
  run.count(store_mode::cached, enough, ISTHMUS_REDUCE_SCATTER, 64, 0, taken);
  looks = 0;
  run.count(store_mode::cached, 2000, ISTHMUS_REDUCE_SCATTER, 64, 0, taken);
  EXPECT_GT(looks, 0u);
  EXPECT_LE(looks, 3 * 2 * (3 + 3));  // trials begun, a look before and one after, of three calls in each form
}

INSTANTIATE_TEST_SUITE_P(seeds, store_chooser_test, testing::Range<std::uint64_t>(1, 21));

}  // namespace
}  // namespace shm_test
