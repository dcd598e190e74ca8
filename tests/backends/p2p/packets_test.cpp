// Runs the unmodified kernels of packets.cu on simulated devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "backends/p2p/simulated/simulation.hpp"

namespace {

using isthmus::p2p::kernel_arguments;
using isthmus::p2p::launch_allgather;
using isthmus::p2p::launch_broadcast;
using isthmus::p2p::launch_drain;
using simulated::machine;

// The rows of the inboxes fill the scratch memory of a rank without gaps.
TEST(scratch_layout, has_memory_for_all_rows) {
  using namespace isthmus::p2p;
  EXPECT_GE(inbox_offset, sizeof(scratch_header));
  for (int size = 2; size <= max_ranks; ++size) {
    const std::size_t ranks = static_cast<std::size_t>(size), row_bytes = 16 * std::size_t{slot_vectors},
                      packet_row_bytes = 16 * std::size_t{packet_vectors};
    EXPECT_EQ(packet_offset(size), inbox_offset + max_slots * depth * 2 * ranks * row_bytes);
    EXPECT_EQ(scratch_bytes(size), packet_offset(size) + max_slots * packet_depth * ranks * packet_row_bytes);
  }
}

constexpr long step_limit = 30'000'000;
constexpr unsigned char fill_byte = 0xa5;

struct planned_call {
  bool is_allgather;
  int root;
  std::uint64_t bytes;
};

unsigned char byte_of(int number, int from, std::uint64_t offset) {
  return static_cast<unsigned char>((number * 131 + from * 17 + static_cast<int>(offset) * 7) % 251);
}

// One collective call on every rank, with its own buffers.
class collective {
 public:
  collective(machine& devices, const planned_call& plan, int number)
      : m_machine(devices), m_plan(plan), m_number(number) {
    const auto size = static_cast<std::size_t>(devices.size());
    m_send.resize(size);
    m_recv.assign(size, std::vector<unsigned char>(plan.bytes * (plan.is_allgather ? size : 1), fill_byte));
    for (int rank = 0; rank < devices.size(); ++rank)
      for (std::uint64_t offset = 0; offset < plan.bytes; ++offset)
        m_send[static_cast<std::size_t>(rank)].push_back(byte_of(number, rank, offset));
  }
  void launch(int rank, std::uint64_t timeout_ns = 0) {
    kernel_arguments args = m_machine.arguments_of(rank);
    args.send_buf = m_send[static_cast<std::size_t>(rank)].data();
    args.recv_buf = m_recv[static_cast<std::size_t>(rank)].data();
    args.count = m_plan.bytes;
    args.root = m_plan.root;
    if (timeout_ns != 0) args.timeout_ns = timeout_ns;
    (m_plan.is_allgather ? launch_allgather : launch_broadcast)(args, m_machine.stream(rank));
  }
  bool is_correct(int rank) const {
    const auto& received = m_recv[static_cast<std::size_t>(rank)];
    for (std::uint64_t offset = 0; offset < received.size(); ++offset) {
      const int from = m_plan.is_allgather ? static_cast<int>(offset / m_plan.bytes) : m_plan.root;
      if (received[offset] != byte_of(m_number, from, offset % m_plan.bytes)) return false;
    }
    return true;
  }
  // Returns true if nothing has been written yet to the location of the data from rank `from`.
  bool is_unwritten(int rank, int from) const {
    const auto& received = m_recv[static_cast<std::size_t>(rank)];
    const std::uint64_t offset = m_plan.is_allgather ? m_plan.bytes * static_cast<std::uint64_t>(from) : 0;
    return std::all_of(received.begin() + static_cast<std::ptrdiff_t>(offset),
                       received.begin() + static_cast<std::ptrdiff_t>(offset + m_plan.bytes),
                       [](unsigned char each) { return each == fill_byte; });
  }

 private:
  machine& m_machine;
  planned_call m_plan;
  int m_number;
  std::vector<std::vector<unsigned char>> m_send, m_recv;
};

constexpr std::uint64_t slot_bytes = 128 * 8;

// Mostly few bytes, sometimes several slots. Large calls are rare because simulated threads are slow, even
// when they wait.
planned_call draw_call(std::mt19937& random, int size, unsigned allgathers_per_8) {
  const unsigned kind = random() % 10;
  const std::uint64_t max_bytes = kind < 6 ? 24 : kind < 9 ? 2 * slot_bytes : 4 * slot_bytes;
  const std::uint64_t min_bytes = kind < 6 ? 1 : max_bytes - slot_bytes;
  return {random() % 8 < allgathers_per_8, static_cast<int>(random() % static_cast<unsigned>(size)),
          min_bytes + random() % (max_bytes - min_bytes + 1)};
}

void run_random_calls(int size, unsigned seed, unsigned allgathers_per_8, int calls,
                      std::uint32_t first_step = 1) {
  std::mt19937 random(seed);
  machine all(size, seed);
  for (int rank = 0; rank < size; ++rank)
    for (auto& step : all.header(rank).packet_step) step = first_step;
  std::deque<collective> collectives;
  for (int i = 0; i < calls; ++i) {
    // The inbox initially contains flags of 0. After 2^32 steps every location has been used, so use
    // them all first.
    const planned_call plan = first_step != 1 && i < 2 ? planned_call{true, 0, 5 * slot_bytes}
                                                       : draw_call(random, size, allgathers_per_8);
    collectives.emplace_back(all, plan, i);
    for (int rank = 0; rank < size; ++rank) collectives.back().launch(rank);
  }
  ASSERT_TRUE(all.run(step_limit)) << "the kernels do not finish";
  for (int i = 0; i < calls; ++i)
    for (int rank = 0; rank < size; ++rank)
      ASSERT_TRUE(collectives[static_cast<std::size_t>(i)].is_correct(rank))
          << "call " << i << " on rank " << rank;
}

TEST(packets, random_broadcasts_and_allgathers_are_correct) {
  for (const int size : {2, 3, 5})
    for (unsigned seed = 1; seed <= 2; ++seed) {
      SCOPED_TRACE("ranks " + std::to_string(size) + ", seed " + std::to_string(seed));
      run_random_calls(size, seed, 2, 30);
      if (HasFatalFailure()) return;
    }
}

TEST(packets, broadcasts_only_are_correct) {
  for (const int size : {2, 3}) {
    run_random_calls(size, 20, 0, 60);
    if (HasFatalFailure()) return;
  }
}

TEST(packets, steps_may_wrap_around) { run_random_calls(3, 30, 2, 30, 0xfffffff0u); }

TEST(broadcast, root_runs_at_most_one_broadcast_ahead) {
  machine all(3, 1);
  collective first(all, {false, 1, 3000}, 1), second(all, {false, 1, 10}, 2);
  first.launch(1);
  EXPECT_TRUE(all.run({1}, step_limit));
  second.launch(1);
  EXPECT_FALSE(all.run({1}, 300'000)) << "the other ranks may still read the previous generation";
  first.launch(0);
  second.launch(0);
  EXPECT_FALSE(all.run({0, 1}, 600'000)) << "without rank 2";
  EXPECT_TRUE(first.is_correct(0));
  EXPECT_TRUE(second.is_unwritten(0, 1));
  first.launch(2);
  second.launch(2);
  EXPECT_TRUE(all.run(step_limit));
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(first.is_correct(rank) && second.is_correct(rank)) << rank;
}

TEST(drain, waits_until_all_ranks_have_started) {
  machine all(3, 2);
  collective broadcast(all, {false, 0, 3000}, 1);
  broadcast.launch(0);
  broadcast.launch(1);
  for (const int rank : {0, 1}) launch_drain(all.arguments_of(rank), all.stream(rank));
  EXPECT_FALSE(all.run({0, 1}, 1'000'000));
  broadcast.launch(2);
  EXPECT_TRUE(all.run(step_limit));
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(broadcast.is_correct(rank)) << rank;
  EXPECT_EQ(all.flags(0).expired, 0u);
}

TEST(drain, times_out_if_a_rank_is_missing) {
  machine all(2, 3);
  collective broadcast(all, {false, 0, 8}, 1);
  broadcast.launch(0);
  ASSERT_TRUE(all.run({0}, step_limit));
  kernel_arguments args = all.arguments_of(0);
  args.timeout_ns = 1;
  launch_drain(args, all.stream(0));
  EXPECT_TRUE(all.run({0}, step_limit));
  EXPECT_EQ(all.flags(0).expired, 1u);
}

TEST(drain, does_not_wait_after_an_allgather) {
  machine all(2, 4);
  collective first(all, {false, 0, 2000}, 1), second(all, {true, 0, 3000}, 2);
  for (const int rank : {0, 1}) {
    first.launch(rank);
    second.launch(rank);
  }
  ASSERT_TRUE(all.run(step_limit));
  launch_drain(all.arguments_of(0), all.stream(0));
  EXPECT_TRUE(all.run({0}, step_limit));
  EXPECT_EQ(all.flags(0).expired, 0u);
}

// Missing data must not be stored, and later calls must not overwrite data that a late rank still reads.
TEST(kernel_timeout, stores_and_sends_nothing) {
  for (const bool is_allgather_first : {false, true}) {
    machine all(2, 5);
    std::deque<collective> calls;
    for (int i = 0; i < 3; ++i) {
      calls.emplace_back(all, planned_call{is_allgather_first == (i % 2 == 0), 1, 8}, i);
      calls.back().launch(0, 1);
    }
    ASSERT_TRUE(all.run({0}, step_limit));
    EXPECT_EQ(all.flags(0).expired, 1u);
    for (const collective& each : calls) EXPECT_TRUE(each.is_unwritten(0, 1));
    EXPECT_EQ(all.header(0).packet_step[0], 2u) << "packets were sent for more than step 1";
  }
}

}  // namespace
