// Runs the unmodified kernels of exchange.cu and combine.cu, and the code that launches them, on simulated devices. The
// calls and their checks are those of the conformance suite.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backends/p2p/channel_calls.hpp"
#include "backends/p2p/simulated/simulation.hpp"
#include "conformance/issue.hpp"
#include "conformance/plan.hpp"
#include "oracle/inputs.hpp"

namespace {

using conformance::test_case;
using isthmus::p2p::channel_rank;
using isthmus::p2p::lane_limits;
using simulated::machine;

constexpr long step_limit = 60'000'000;
constexpr lane_limits few_packets{2, 1 << 20}, only_chunks{2, 0}, mixed_rings{3, 600}, one_lane{1, 20000};

channel_rank rank_of(const machine& all, int rank, const lane_limits& limits, std::uint64_t timeout_ns = 0) {
  channel_rank self{all.arguments_of(rank), limits};
  if (timeout_ns != 0) self.arguments.timeout_ns = timeout_ns;
  return self;
}

// A send or receive of a group.
isthmus_operation message_of(isthmus_collective direction, int peer, std::vector<unsigned char>& buffer) {
  isthmus_operation operation{};
  operation.collective = direction;
  operation.datatype = ISTHMUS_UINT8;
  operation.root = peer;
  operation.count = buffer.size();
  operation.send_buf = operation.recv_buf = buffer.data();
  return operation;
}

// One call on every rank, with its own buffers.
class simulated_call {
 public:
  simulated_call(machine& all, const test_case& test, const lane_limits& limits)
      : m_all(all), m_test(test), m_limits(limits), m_shape(conformance::shape_of(test, all.size())) {
    const std::size_t bytes = conformance::rank_buffers::required_bytes(test, m_shape);
    for (int rank = 0; rank < all.size(); ++rank) {
      m_memory.push_back(std::make_unique<std::byte[]>(bytes));
      m_buffers.emplace_back(test, m_shape, rank, std::span(m_memory.back().get(), bytes));
    }
  }
  void launch(int rank, std::uint64_t timeout_ns = 0) {
    const channel_rank self = rank_of(m_all, rank, m_limits, timeout_ns);
    isthmus_operation operation =
        conformance::operation_of(m_test, m_shape, m_buffers[static_cast<std::size_t>(rank)].addresses(), rank);
    if (m_test.collective != ISTHMUS_SEND) {
      launch_channel_call(self, operation, m_test.seed % 2 == 0, m_all.stream(rank));
      return;
    }
    isthmus::p2p::message_rounds messages(self);
    operation.root = (rank + m_shape.root) % m_all.size();
    messages.add(operation);
    operation.collective = ISTHMUS_RECV;
    operation.root = (rank + m_all.size() - m_shape.root) % m_all.size();
    messages.add(operation);
    messages.launch(m_all.stream(rank));
  }
  void launch_all() {
    for (int rank = 0; rank < m_all.size(); ++rank) launch(rank);
  }
  // "" or the first wrong or stray byte. `results` false: the call must not have written anything.
  std::string error(int rank, bool results = true) const {
    return m_buffers[static_cast<std::size_t>(rank)].find_error(results, results, false).value_or("");
  }
  void expect_correct() const {
    for (int rank = 0; rank < m_all.size(); ++rank)
      ASSERT_EQ(error(rank), "") << to_string(m_test) << " on rank " << rank << " of " << m_all.size();
  }

 private:
  machine& m_all;
  test_case m_test;
  lane_limits m_limits;
  oracle::operation_shape m_shape;
  std::vector<std::unique_ptr<std::byte[]>> m_memory;
  std::vector<conformance::rank_buffers> m_buffers;
};

test_case call_of(isthmus_collective collective, std::uint64_t bytes, std::uint64_t seed, int root = 0) {
  test_case test;
  test.collective = collective;
  test.datatype = ISTHMUS_UINT8;
  test.count = bytes;
  test.seed = seed;
  test.root = root;
  return test;
}

// Enqueues all calls on all ranks before any rank starts.
void run_together(machine& all, const std::vector<test_case>& tests, const lane_limits& limits) {
  std::deque<simulated_call> calls;
  for (const test_case& test : tests) calls.emplace_back(all, test, limits).launch_all();
  ASSERT_TRUE(all.run(step_limit)) << "the kernels do not finish; first call: " << to_string(tests.front());
  for (const simulated_call& each : calls) {
    each.expect_correct();
    if (testing::Test::HasFatalFailure()) return;
  }
}

// The scratch memory of a rank has entries for all lanes.
TEST(scratch_layout, has_memory_for_all_rows) {
  using namespace isthmus::p2p;
  EXPECT_GE(counters_offset, sizeof(scratch_header));
  EXPECT_EQ(packets_offset % 16, 0u);
  for (int size = 1; size <= max_ranks; ++size) {
    const auto ranks = static_cast<std::size_t>(size);
    const std::size_t lanes = (ranks - 1) * static_cast<std::size_t>(max_lanes(size));
    EXPECT_LE(counters_offset + lanes * 32, packets_offset);
    EXPECT_LE(packets_offset + lanes * packet_depth * packet_vectors * 16, chunks_offset);
    EXPECT_LE(chunks_offset + lanes * chunk_depth * chunk_vectors * 16, inbox_offset);
    EXPECT_EQ(inbox_bytes(size), max_slots * depth * 2 * ranks * 16 * std::size_t{slot_vectors});
    EXPECT_LE(static_cast<int>(lanes), 132) << "more thread blocks than multiprocessors wait for peers";
  }
}

// Both ranks of a message compute its division from its length, and the rings have memory for it.
TEST(lane_shape, rows_fit_the_rings) {
  using namespace isthmus::p2p;
  for (const lane_limits& limits : {lane_limits{1, 0}, lane_limits{64, 0}, lane_limits{18, 1 << 19}})
    for (std::uint64_t bytes = 1; bytes < std::uint64_t{1} << 40; bytes = bytes * 3 + 1) {
      const lane_shape shape = shape_of(bytes, limits);
      EXPECT_GE(shape.lanes, 1);
      EXPECT_LE(shape.lanes, limits.lanes);
      EXPECT_LE(shape.threads, lane_threads);
      EXPECT_LE(shape.chunk_batch, chunk_batch);
      EXPECT_EQ(shape.chunk_batch == 0, bytes <= limits.packet_bytes);
      EXPECT_LT(std::uint64_t(shape.lanes - 1) * shape.row_bytes(), bytes) << "a lane without data";
    }
}

// Groups that use two backends need rings with memory for two messages.
TEST(lane_shape, of_messages_uses_half_a_ring) {
  using namespace isthmus::p2p;
  std::mt19937 random(1);
  for (const int lanes : {1, 5, 16, 64}) {
    const lane_limits limits = message_limits(lanes, 1 << 19);
    const std::uint64_t longest = max_buffered_bytes(lanes);
    std::vector<std::uint64_t> lengths{1, limits.packet_bytes, limits.packet_bytes + 1, longest};
    for (int i = 0; i < 2000; ++i) lengths.push_back(1 + random() % longest);
    for (const std::uint64_t bytes : lengths) {
      const lane_shape shape = shape_of(bytes, limits);
      const std::uint64_t steps_per_ring =
          (shape.chunk_batch != 0 ? chunk_depth : packet_depth * packet_batch) / 2;
      EXPECT_LE(bytes, steps_per_ring * shape.row_bytes() * shape.lanes) << bytes << ", " << lanes << " lanes";
    }
  }
}

class every_call : public testing::TestWithParam<int> {};

// A sample of the product of the collective table, each call alone.
TEST_P(every_call, is_correct) {
  conformance::plan_options options;
  options.samples = 12;
  options.batches = 0;
  options.sampling_stride = GetParam() * GetParam() / 2;
  options.largest_bytes = 3000;
  unsigned number = 0;
  for (const test_case& test : make_plan(options, GetParam(), {}).singles) {
    machine all(GetParam(), ++number);
    run_together(all, {test}, number % 5 == 0 ? only_chunks : few_packets);
    if (HasFatalFailure()) return;
  }
}

// Ranks are skewed and start a call while others are still in an earlier one.
TEST_P(every_call, back_to_back_is_correct) {
  conformance::plan_options options;
  options.samples = 0;
  options.batches = GetParam() < 8 ? 4 : 1;
  options.sampling_stride = 1 << 20;
  options.largest_bytes = 2000;
  unsigned number = 100;
  for (const auto& batch : make_plan(options, GetParam(), {}).back_to_back) {
    machine all(GetParam(), ++number);
    std::vector<test_case> tests = batch;
    for (test_case& each : tests)
      each.count = std::min<std::uint64_t>(each.count, number % 2 == 0 ? 2000 : 300);
    run_together(all, tests, number % 2 == 0 ? few_packets : mixed_rings);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(ranks, every_call, testing::Values(2, 3, 4, 8));

// The order decides the last bits: these sums lose the small terms of other orders.
TEST(reductions, add_in_rank_order) {
  constexpr int size = 4;
  constexpr std::size_t count = 50;
  for (const isthmus_collective collective : {ISTHMUS_ALLREDUCE, ISTHMUS_REDUCE}) {
    machine all(size, 9);
    std::mt19937 random(9);
    std::vector<std::vector<float>> inputs(size, std::vector<float>(count)), results = inputs;
    for (auto& input : inputs)
      for (float& each : input)
        each = std::ldexp(static_cast<float>(random() % 65536), static_cast<int>(random() % 20));
    for (int rank = 0; rank < size; ++rank) {
      isthmus_operation operation{};
      operation.collective = collective;
      operation.datatype = ISTHMUS_FLOAT32;
      operation.op = ISTHMUS_SUM;
      operation.count = count;
      operation.send_buf = inputs[static_cast<std::size_t>(rank)].data();
      operation.recv_buf = results[static_cast<std::size_t>(rank)].data();
      launch_channel_call(rank_of(all, rank, few_packets), operation, true, all.stream(rank));
    }
    ASSERT_TRUE(all.run(step_limit));
    for (std::size_t i = 0; i < count; ++i) {
      float sum = inputs[0][i];
      for (std::size_t rank = 1; rank < size; ++rank) sum += inputs[rank][i];
      EXPECT_EQ(results[0][i], sum) << i;
    }
  }
}

// The messages are many times as long as the rings of their only lane.
TEST(rings, long_messages_wrap_around) {
  for (const lane_limits& limits : {one_lane, lane_limits{1, 0}}) {
    machine all(2, 7);
    test_case in_place = call_of(ISTHMUS_ALLTOALL, 300'000, 3);
    in_place.in_place = true;
    if (limits.packet_bytes != 0) in_place.count = 20'000;
    run_together(all, {in_place, call_of(ISTHMUS_ALLTOALLV, in_place.count, 4), in_place}, limits);
    if (HasFatalFailure()) return;
  }
}

TEST(rings, numbers_wrap_around) {
  machine all(3, 8);
  constexpr std::uint32_t first = 0xfffffff0u;
  for (int rank = 0; rank < all.size(); ++rank) all.set_counters(rank, first);
  // The rings initially contain flags of 0, so all entries are used before a step has this number.
  std::vector<test_case> tests;
  for (int i = 0; i < 12; ++i)
    tests.push_back(call_of(ISTHMUS_ALLGATHER, 9000, 10u + static_cast<unsigned>(i)));
  for (unsigned i = 0; i < 40; ++i)
    tests.push_back(call_of(i % 2 == 0 ? ISTHMUS_ALLTOALL : ISTHMUS_BROADCAST, 1 + 211 * i, i));
  run_together(all, tests, mixed_rings);
}

// Several messages of each pair, to every rank including the own one, posted in different orders.
TEST(groups, of_many_messages_are_correct) {
  constexpr int size = 3, most_messages = 4;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    machine all(size, seed);
    struct transfer {
      int from, to;
      std::vector<unsigned char> sent, received;
    };
    std::vector<transfer> transfers;
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to)
        for (unsigned i = random() % (most_messages + 1); i > 0; --i) {
          const std::size_t bytes = random() % 3 == 0 ? 0 : random() % 3000;
          transfers.push_back(
              {from, to, std::vector<unsigned char>(bytes), std::vector<unsigned char>(bytes, 0xa5)});
          for (unsigned char& each : transfers.back().sent) each = static_cast<unsigned char>(random());
        }
    for (int rank = 0; rank < size; ++rank) {
      std::vector<isthmus_operation> sends, receives;
      for (transfer& each : transfers) {
        if (each.from == rank) sends.push_back(message_of(ISTHMUS_SEND, each.to, each.sent));
        if (each.to == rank) receives.push_back(message_of(ISTHMUS_RECV, each.from, each.received));
      }
      const channel_rank self =
          rank_of(all, rank, seed % 2 == 0 ? mixed_rings : isthmus::p2p::message_limits(3, 600));
      isthmus::p2p::message_rounds messages(self);
      const bool sends_first = random() % 2 == 0;
      for (const auto& operations : {sends_first ? sends : receives, sends_first ? receives : sends})
        for (const isthmus_operation& each : operations) messages.add(each);
      EXPECT_TRUE(messages.are_self_messages_matched());
      messages.launch(all.stream(rank));
    }
    ASSERT_TRUE(all.run(step_limit));
    for (const transfer& each : transfers)
      ASSERT_EQ(each.received, each.sent) << "from " << each.from << " to " << each.to << ", seed " << seed;
  }
}

// Random exchanges of two ranks. Each rank divides its pairs into groups as it likes, as with NCCL.
TEST(groups, may_differ_between_ranks) {
  constexpr int size = 2;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    std::mt19937 random(seed);
    machine all(size, seed);
    const lane_limits limits = isthmus::p2p::message_limits(2, random() % 2 == 0 ? 1 << 19 : 500);
    struct transfer {
      std::vector<unsigned char> sent, received;
    };
    std::vector<std::array<transfer, size>> pairs(12);  // [i][from]
    for (auto& pair : pairs)
      for (transfer& each : pair) {
        const std::size_t bytes = random() % 5 == 0 ? 0 : random() % (random() % 3 == 0 ? 20'000 : 400);
        each = {std::vector<unsigned char>(bytes), std::vector<unsigned char>(bytes, 0xa5)};
        for (unsigned char& byte : each.sent) byte = static_cast<unsigned char>(random());
      }
    for (int rank = 0; rank < size; ++rank) {
      const channel_rank self = rank_of(all, rank, limits);
      for (std::size_t i = 0; i < pairs.size();) {
        isthmus::p2p::message_rounds messages(self);
        for (std::size_t end = std::min(pairs.size(), i + 1 + random() % 4); i < end; ++i) {
          transfer &out = pairs[i][static_cast<std::size_t>(rank)],
                   &in = pairs[i][static_cast<std::size_t>(1 - rank)];
          messages.add(message_of(ISTHMUS_SEND, 1 - rank, out.sent));
          messages.add(message_of(ISTHMUS_RECV, 1 - rank, in.received));
        }
        messages.launch(all.stream(rank));
      }
    }
    ASSERT_TRUE(all.run(step_limit)) << "seed " << seed;
    for (std::size_t i = 0; i < pairs.size(); ++i)
      for (const transfer& each : pairs[i])
        ASSERT_EQ(each.received, each.sent) << "pair " << i << ", seed " << seed;
  }
}

// The k-th send to a peer runs with the k-th receive from it, also if some messages have no data: rank 1 sends the answer
// to the second message after it has received that message.
TEST(groups, count_messages_without_data) {
  machine all(2, 5);
  std::vector<unsigned char> nothing, first(100, 1), second(200, 2), answer(300, 3);
  std::vector<unsigned char> first_copy(100), second_copy(200), answer_copy(300);
  const channel_rank self = rank_of(all, 0, few_packets), other = rank_of(all, 1, few_packets);
  isthmus::p2p::message_rounds messages(self);
  for (std::vector<unsigned char>* const each : {&first, &second})
    messages.add(message_of(ISTHMUS_SEND, 1, *each));
  for (std::vector<unsigned char>* const each : {&nothing, &answer_copy})
    messages.add(message_of(ISTHMUS_RECV, 1, *each));
  messages.launch(all.stream(0));
  const auto run_alone = [&](const isthmus_operation& operation) {
    isthmus::p2p::message_rounds single(other);
    single.add(operation);
    single.launch(all.stream(1));
  };
  run_alone(message_of(ISTHMUS_RECV, 0, first_copy));
  run_alone(message_of(ISTHMUS_SEND, 0, nothing));
  run_alone(message_of(ISTHMUS_RECV, 0, second_copy));
  run_alone(message_of(ISTHMUS_SEND, 0, answer));
  ASSERT_TRUE(all.run(step_limit));
  EXPECT_EQ(first_copy, first);
  EXPECT_EQ(second_copy, second);
  EXPECT_EQ(answer_copy, answer);
}

TEST(groups, unmatched_messages_to_self_are_found) {
  machine all(2, 1);
  std::vector<unsigned char> buffer(8), longer(9);
  const channel_rank self = rank_of(all, 1, few_packets);
  isthmus::p2p::message_rounds messages(self);
  messages.add(message_of(ISTHMUS_SEND, 1, buffer));
  EXPECT_FALSE(messages.are_self_messages_matched());
  messages.add(message_of(ISTHMUS_RECV, 1, longer));
  EXPECT_FALSE(messages.are_self_messages_matched());
}

TEST(sender, runs_ahead_until_the_ring_is_full) {
  machine all(3, 1);
  std::deque<simulated_call> calls;
  for (unsigned i = 0; i <= isthmus::p2p::packet_depth; ++i)
    calls.emplace_back(all, call_of(ISTHMUS_BROADCAST, 1000, i, 1), few_packets);
  for (int i = 0; i < isthmus::p2p::packet_depth; ++i) calls[static_cast<std::size_t>(i)].launch(1);
  EXPECT_TRUE(all.run({1}, step_limit)) << "a root must not wait for its readers";
  calls.back().launch(1);
  EXPECT_FALSE(all.run({1}, 300'000)) << "the other ranks may still read the first message";
  for (simulated_call& each : calls) each.launch(0);
  EXPECT_FALSE(all.run({0, 1}, 600'000)) << "without rank 2";
  EXPECT_EQ(calls.front().error(0), "") << "it does not depend on rank 2";
  for (simulated_call& each : calls) each.launch(2);
  EXPECT_TRUE(all.run(step_limit));
  for (const simulated_call& each : calls) each.expect_correct();
}

// Two messages of the largest length of each ring: the second one is sent although the first one was not received.
TEST(sender, does_not_wait_for_the_receiver_of_two_messages) {
  const lane_limits limits = isthmus::p2p::message_limits(1, 1 << 19);
  for (const std::uint64_t bytes :
       {limits.packet_bytes, limits.packet_bytes + 1, isthmus::p2p::max_buffered_bytes(1)}) {
    machine all(2, 6);
    std::deque<std::vector<unsigned char>> sent(3, std::vector<unsigned char>(bytes)), received = sent;
    for (unsigned char i = 0; i < 3; ++i) sent[i].assign(bytes, i + 1);
    const channel_rank self = rank_of(all, 0, limits), other = rank_of(all, 1, limits);
    const auto launch = [&](const channel_rank& rank, isthmus_operation operation) {
      isthmus::p2p::message_rounds messages(rank);
      messages.add(operation);
      messages.launch(all.stream(rank.arguments.rank));
    };
    for (int i = 0; i < 2; ++i) launch(self, message_of(ISTHMUS_SEND, 1, sent[static_cast<std::size_t>(i)]));
    EXPECT_TRUE(all.run({0}, step_limit)) << bytes;
    launch(self, message_of(ISTHMUS_SEND, 1, sent[2]));
    for (auto& each : received) launch(other, message_of(ISTHMUS_RECV, 0, each));
    EXPECT_TRUE(all.run(step_limit));
    EXPECT_EQ(received, sent);
  }
}

// One lane: the ring has memory for four steps, of 2 KiB as packets of 128 threads, or of 32 KiB as chunks.
TEST(sender, waits_for_space_within_a_message) {
  for (const auto& [limits, ring_bytes] : {std::pair(lane_limits{1, 1 << 20}, std::uint64_t{8} << 10),
                                           std::pair(lane_limits{1, 0}, std::uint64_t{128} << 10)})
    for (const bool fits : {true, false}) {
      machine all(2, 4);
      simulated_call call(all, call_of(ISTHMUS_BROADCAST, ring_bytes + (fits ? 0 : 1), 3), limits);
      call.launch(0);
      EXPECT_EQ(all.run({0}, 1'000'000), fits) << ring_bytes;
      call.launch(1);
      EXPECT_TRUE(all.run(step_limit));
      call.expect_correct();
    }
}

TEST(barrier, waits_for_every_rank) {
  machine all(3, 3);
  simulated_call barrier(all, call_of(ISTHMUS_BARRIER, 0, 1), few_packets);
  barrier.launch(0);
  barrier.launch(1);
  EXPECT_FALSE(all.run({0, 1}, 1'000'000));
  EXPECT_FALSE(all.is_idle(0) || all.is_idle(1));
  barrier.launch(2);
  EXPECT_TRUE(all.run(step_limit));
}

TEST(drain, waits_until_everything_is_acknowledged) {
  for (const lane_limits& limits : {few_packets, only_chunks}) {
    machine all(3, 2);
    simulated_call broadcast(all, call_of(ISTHMUS_BROADCAST, 3000, 1), limits);
    broadcast.launch(0);
    broadcast.launch(1);
    launch_drain(all.arguments_of(0), all.stream(0));
    EXPECT_FALSE(all.run({0, 1}, 1'000'000));
    broadcast.launch(2);
    EXPECT_TRUE(all.run(step_limit));
    broadcast.expect_correct();
    EXPECT_EQ(all.flags(0).expired, 0u);
  }
}

TEST(drain, times_out_if_a_rank_does_not_receive) {
  machine all(2, 3);
  simulated_call broadcast(all, call_of(ISTHMUS_BROADCAST, 8, 1), few_packets);
  broadcast.launch(0);
  ASSERT_TRUE(all.run({0}, step_limit));
  isthmus::p2p::channel_arguments args = all.arguments_of(0);
  args.timeout_ns = 1;
  launch_drain(args, all.stream(0));
  EXPECT_TRUE(all.run({0}, step_limit));
  EXPECT_EQ(all.flags(0).expired, 1u);
}

// Kernels that are already queued after the failure end, and write no result.
TEST(timeout, names_the_missing_rank_and_stores_nothing) {
  for (const lane_limits& limits : {few_packets, only_chunks})
    for (const isthmus_collective collective :
         {ISTHMUS_ALLGATHER, ISTHMUS_BROADCAST, ISTHMUS_ALLREDUCE, ISTHMUS_GATHER, ISTHMUS_SEND}) {
      machine all(2, 5);
      std::deque<simulated_call> calls;
      for (unsigned i = 0; i < 2; ++i) {
        test_case test = call_of(collective, 8, 2 * i + 1, 1);  // few threads spin
        if (collective == ISTHMUS_GATHER) test.root = 0;
        calls.emplace_back(all, test, limits).launch(0, 1);
      }
      ASSERT_TRUE(all.run({0}, step_limit));
      EXPECT_EQ(all.flags(0).expired, 1u) << conformance::name_of(collective);
      EXPECT_EQ(all.flags(0).awaited, collective == ISTHMUS_ALLREDUCE ? 0u : 2u)
          << conformance::name_of(collective);
      for (const simulated_call& each : calls)
        if (collective != ISTHMUS_ALLGATHER &&
            collective != ISTHMUS_GATHER) {  // these copy the rank's own block
          EXPECT_EQ(each.error(0, false), "") << conformance::name_of(collective);
        }
    }
}

TEST(abort, ends_waiting_kernels_without_a_timeout) {
  machine all(2, 6);
  simulated_call call(all, call_of(ISTHMUS_ALLTOALL, 8, 1), mixed_rings);
  call.launch(1);
  ASSERT_FALSE(all.run({1}, 100'000));
  all.flags(1).abort = 1;
  EXPECT_TRUE(all.run({1}, step_limit));
  EXPECT_EQ(all.flags(1).expired, 0u);
}

}  // namespace
