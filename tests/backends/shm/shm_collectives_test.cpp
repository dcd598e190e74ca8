// Every collective, algorithm and memory type, with threads and processes, on random data.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "backends/shm/algorithms.hpp"
#include "collective_case.hpp"

namespace shm_test {
namespace {

using failures = std::vector<std::string>;

constexpr isthmus_collective collectives[] = {
    ISTHMUS_BROADCAST, ISTHMUS_REDUCE,    ISTHMUS_ALLREDUCE,      ISTHMUS_REDUCE_SCATTER, ISTHMUS_ALLGATHER,
    ISTHMUS_GATHER,    ISTHMUS_SCATTER,   ISTHMUS_ALLTOALL,       ISTHMUS_ALLGATHERV,     ISTHMUS_GATHERV,
    ISTHMUS_SCATTERV,  ISTHMUS_ALLTOALLV, ISTHMUS_REDUCE_SCATTERV};
constexpr const char* algorithms[] = {nullptr,
                                      "packet",
                                      "two_shot_packet",
                                      "grid_packet",
                                      "one_shot",
                                      "one_shot_streamed",
                                      "one_shot_per_reader",
                                      "two_shot",
                                      "two_shot_streamed",
                                      "two_shot_gather",
                                      "zero_copy",
                                      "zero_copy_streamed",
                                      "divided"};
constexpr const char* reducing[] = {
    "packet",   "two_shot_packet",   "grid_packet", "one_shot",           "one_shot_streamed",
    "two_shot", "two_shot_streamed", "zero_copy",   "zero_copy_streamed", "one_shot_per_reader"};

// With more ranks than cores (CI has two), every step waits for the scheduler. A subset of the combinations is
// enough then.
bool is_oversubscribed(const rank& self) { return self.size() > 3; }

struct rank_layout {
  int ranks, processes;
};
std::string rank_layout_name(const testing::TestParamInfo<rank_layout>& info) {
  return "ranks" + std::to_string(info.param.ranks) + "_processes" + std::to_string(info.param.processes);
}

class shm_collectives : public testing::TestWithParam<rank_layout> {
 protected:
  run_setup make_setting() const {
    run_setup s;
    s.ranks = GetParam().ranks;
    s.processes = GetParam().processes;
    s.options = {{"slot_bytes", "4096"}, {"packet_lines", "64"}, {"cell_bytes", "512"}};  // many chunks
    return s;
  }
};

TEST_P(shm_collectives, correct_for_every_algorithm_and_memory_type) {
  EXPECT_EQ(run_backend(
                make_setting(),
                [](rank& self) {
                  std::uint64_t seed = 1, case_count = 0, case_index = 0,
                                min_cases = is_oversubscribed(self) ? 80 : 500;
                  for (const auto collective : collectives)
                    for (const char* algorithm : algorithms)
                      for (const bool in_place : {false, true})
                        for (const auto placement : {memory::separate, memory::heap, memory::mixed})
                          for (const std::uint64_t count : {0, 1, 17, 2048, 32771}) {
                            if (is_oversubscribed(self) && count != 17 && count != 2048) continue;
                            // Coprime to the number of memory types and sizes, so that every
                            // combination is tested.
                            const std::uint64_t stride = is_oversubscribed(self) ? 5 : count == 32771 ? 2 : 1;
                            if (stride > 1 && ++case_index % stride != 0) continue;
                            collective_case p;
                            p.collective = collective;
                            p.algorithm = algorithm;
                            p.in_place = in_place;
                            p.placement = placement;
                            p.count = count;
                            p.root = static_cast<int>(seed % static_cast<std::uint64_t>(self.size()));
                            p.seed = ++seed;
                            case_count += run_case(self, p);
                          }
                  check(case_count > min_cases, "only " + std::to_string(case_count) + " cases were supported");
                }),
            failures{});
}

// As in containers and on systems whose kernel forbids copies between processes.
TEST_P(shm_collectives, correct_without_kernel_copies) {
  run_setup s = make_setting();
  s.options.emplace("kernel_copies", "0");
  EXPECT_EQ(
      run_backend(s,
                  [](rank& self) {
                    std::uint64_t seed = 1000;
                    for (const auto collective : collectives)
                      for (const char* algorithm : {static_cast<const char*>(nullptr), "zero_copy", "channel"})
                        for (const auto placement : {memory::separate, memory::mixed})
                          for (const std::uint64_t count : {17, 5000}) {
                            if (is_oversubscribed(self) && count != 17) continue;
                            collective_case p;
                            p.collective = collective;
                            p.algorithm = algorithm;
                            p.placement = placement;
                            p.count = count;
                            p.root = static_cast<int>(seed % static_cast<std::uint64_t>(self.size()));
                            p.seed = ++seed;
                            run_case(self, p);
                          }
                  }),
      failures{});
}

TEST_P(shm_collectives, reduces_every_datatype_with_every_op) {
  EXPECT_EQ(run_backend(make_setting(),
                        [](rank& self) {
                          std::uint64_t seed = 77, case_index = 0;
                          for (int datatype = 0; datatype < ISTHMUS_DATATYPE_COUNT; ++datatype)
                            for (int op = 0; op < ISTHMUS_REDUCTION_OP_COUNT; ++op)
                              for (const auto collective : {ISTHMUS_ALLREDUCE, ISTHMUS_REDUCE,
                                                            ISTHMUS_REDUCE_SCATTER, ISTHMUS_REDUCE_SCATTERV})
                                for (const char* algorithm : reducing)
                                  for (const std::uint64_t count : {5, 3001}) {
                                    // Coprime to the number of collectives and of algorithms.
                                    if (is_oversubscribed(self) && (count != 5 || ++case_index % 5 != 0))
                                      continue;
                                    collective_case p;
                                    p.collective = collective;
                                    p.datatype = static_cast<isthmus_datatype>(datatype);
                                    p.op = static_cast<isthmus_reduction_op>(op);
                                    p.algorithm = algorithm;
                                    p.count = count;
                                    p.placement = seed % 2 == 0 ? memory::heap : memory::separate;
                                    p.root = static_cast<int>(seed % static_cast<std::uint64_t>(self.size()));
                                    p.seed = ++seed;
                                    run_case(self, p);
                                  }
                        }),
            failures{});
}

TEST_P(shm_collectives, back_to_back_calls_with_skewed_ranks) {
  EXPECT_EQ(run_backend(make_setting(),
                        [](rank& self) {
                          std::mt19937_64 shared_random(4711), own(static_cast<std::uint64_t>(self.number()));
                          for (int i = 0; i < (is_oversubscribed(self) ? 300 : 3000); ++i) {
                            collective_case p;
                            p.collective = collectives[shared_random() % std::size(collectives)];
                            p.algorithm = algorithms[shared_random() % std::size(algorithms)];
                            p.in_place = shared_random() % 2 == 0;
                            p.placement = static_cast<memory>(shared_random() % 3);
                            p.count = shared_random() % (shared_random() % 8 == 0 ? 5000 : 40);
                            p.root =
                                static_cast<int>(shared_random() % static_cast<std::uint64_t>(self.size()));
                            p.seed = shared_random();
                            if (own() % 64 == 0)
                              std::this_thread::sleep_for(std::chrono::microseconds(own() % 2000));
                            run_case(self, p);
                          }
                        }),
            failures{});
}

// Runs of calls with one root. Senders run ahead of a slow root, and must not overwrite what it has yet to read, also
// after the root or the kind of call has changed.
TEST_P(shm_collectives, senders_do_not_overrun_a_slow_root) {
  EXPECT_EQ(run_backend(make_setting(),
                        [](rank& self) {
                          constexpr isthmus_collective kinds[] = {ISTHMUS_REDUCE, ISTHMUS_GATHER,
                                                                  ISTHMUS_SCATTER, ISTHMUS_ALLREDUCE};
                          constexpr const char* staging[] = {"packet", "grid_packet", "one_shot",
                                                             "one_shot_per_reader"};
                          std::mt19937_64 shared_random(42), own(static_cast<std::uint64_t>(self.number()));
                          for (int run = 0; run < (is_oversubscribed(self) ? 20 : 150); ++run) {
                            collective_case p;
                            p.collective = kinds[shared_random() % std::size(kinds)];
                            p.algorithm = staging[shared_random() % std::size(staging)];
                            p.root =
                                static_cast<int>(shared_random() % static_cast<std::uint64_t>(self.size()));
                            p.count = 1 + shared_random() % 40;
                            for (std::uint64_t calls = 1 + shared_random() % 20; calls > 0; --calls) {
                              p.seed = shared_random();
                              if (self.number() == p.root && own() % 8 == 0)
                                std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
                              run_case(self, p);
                            }
                          }
                        }),
            failures{});
}

// Enough calls for rank 0 to try the other store mode several times, with ranks using both modes at
// the same time.
TEST_P(shm_collectives, correct_while_store_modes_change) {
  EXPECT_EQ(run_backend(make_setting(),
                        [](rank& self) {
                          const isthmus_collective kinds[] = {ISTHMUS_ALLREDUCE, ISTHMUS_ALLTOALL,
                                                              ISTHMUS_BROADCAST};
                          for (std::uint64_t i = 0; i < (is_oversubscribed(self) ? 90 : 600); ++i) {
                            collective_case p;
                            p.collective = kinds[i % std::size(kinds)];
                            p.algorithm = i % 2 == 0 ? "one_shot_adaptive" : "two_shot_adaptive";
                            if (p.collective != ISTHMUS_ALLREDUCE) p.algorithm = "one_shot_adaptive";
                            p.count = 2048;
                            p.root = self.size() - 1;
                            p.seed = i;
                            check(run_case(self, p), p.describe() + " is not supported");
                          }
                        }),
            failures{});
}

TEST_P(shm_collectives, barrier_waits_for_all_ranks) {
  run_setup s = make_setting();
  EXPECT_EQ(
      run_backend(s,
                  [](rank& self) {
                    // the heap of rank 0 holds a counter that all ranks see
                    auto& entries = *reinterpret_cast<std::atomic<int>*>(
                        self.heap(0) - static_cast<std::ptrdiff_t>(static_cast<std::uint64_t>(self.number()) *
                                                                   heap_blocks * heap_block_bytes));
                    isthmus_operation barrier{};
                    barrier.collective = ISTHMUS_BARRIER;
                    std::mt19937 own(static_cast<unsigned>(self.number()));
                    for (int i = 1; i <= 200; ++i) {
                      if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
                      ++entries;
                      check(self.run(barrier) == ISTHMUS_SUCCESS, self.failure());
                      check(entries >= i * self.size(), "left a barrier too early");
                    }
                  }),
      failures{});
}

// Every rank sends several messages to every rank, including itself, in one group and in order.
TEST_P(shm_collectives, grouped_messages_stay_in_order) {
  EXPECT_EQ(
      run_backend(make_setting(),
                  [](rank& self) {
                    const int n = self.size(), me = self.number();
                    for (int round = 0; round < 20; ++round) {
                      const std::vector<std::uint64_t> lengths = {1, 700, 0, 5000,
                                                                  static_cast<std::uint64_t>(round)};
                      std::vector<std::vector<std::uint32_t>> out, in;
                      std::vector<isthmus_operation> batch;
                      const auto value = [&](int from, int to, std::size_t message, std::size_t i) {
                        return static_cast<std::uint32_t>(
                                   ((from * 64 + to) * 8 + static_cast<int>(message)) * 65536 + round * 7) +
                               static_cast<std::uint32_t>(i);
                      };
                      for (int peer = 0; peer < n; ++peer)
                        for (std::size_t m = 0; m < lengths.size(); ++m) {
                          auto& data = out.emplace_back(lengths[m]);
                          for (std::size_t i = 0; i < data.size(); ++i) data[i] = value(me, peer, m, i);
                          in.emplace_back(lengths[m], 0xdeadbeefu);
                        }
                      std::size_t index = 0;
                      for (int peer = 0; peer < n; ++peer)
                        for (std::size_t m = 0; m < lengths.size(); ++m, ++index) {
                          isthmus_operation send{}, recv{};
                          send.collective = ISTHMUS_SEND;
                          recv.collective = ISTHMUS_RECV;
                          send.datatype = recv.datatype = ISTHMUS_UINT32;
                          send.root = recv.root = peer;
                          send.count = recv.count = lengths[m];
                          send.send_buf = out[index].data();
                          recv.recv_buf = in[index].data();
                          batch.push_back(send);
                          batch.push_back(recv);
                        }
                      check(self.run(batch) == ISTHMUS_SUCCESS, self.failure());
                      index = 0;
                      for (int peer = 0; peer < n; ++peer)
                        for (std::size_t m = 0; m < lengths.size(); ++m, ++index) {
                          std::vector<std::uint32_t> expected(lengths[m]);
                          for (std::size_t i = 0; i < lengths[m]; ++i) expected[i] = value(peer, me, m, i);
                          check(in[index] == expected, "message " + std::to_string(m) + " of rank " +
                                                           std::to_string(peer) + " is wrong");
                        }
                    }
                  }),
      failures{});
}

// Both sides copy fragments of a long message if each has a core.
TEST_P(shm_collectives, long_messages_with_uneven_lengths) {
  EXPECT_EQ(run_backend(make_setting(),
                        [](rank& self) {
                          std::uint64_t seed = 2000;
                          for (const auto collective : {ISTHMUS_GATHERV, ISTHMUS_SCATTERV, ISTHMUS_ALLTOALLV})
                            for (const bool in_place : {false, true})
                              for (const std::uint64_t count : {20'000, 131'073, 300'001}) {
                                if (is_oversubscribed(self) && count != 20'000) continue;
                                collective_case p;
                                p.collective = collective;
                                p.in_place = in_place;
                                p.datatype = ISTHMUS_FLOAT64;
                                p.count = count;
                                p.root = static_cast<int>(seed % static_cast<std::uint64_t>(self.size()));
                                p.seed = ++seed;
                                run_case(self, p);
                              }
                        }),
            failures{});
}

TEST_P(shm_collectives, blocking_messages_in_a_ring) {
  EXPECT_EQ(run_backend(make_setting(),
                        [](rank& self) {
                          const int n = self.size(), me = self.number();
                          if (n == 1) return;
                          for (const std::size_t length : {1u, 100u, 20'000u, 400'003u}) {
                            std::vector<int> data(length, -1);
                            isthmus_operation send{}, recv{};
                            send.collective = ISTHMUS_SEND;
                            recv.collective = ISTHMUS_RECV;
                            send.datatype = recv.datatype = ISTHMUS_INT32;
                            send.count = recv.count = length;
                            send.root = (me + 1) % n;
                            recv.root = (me + n - 1) % n;
                            send.send_buf = recv.recv_buf = data.data();
                            if (me == 0) {
                              std::fill(data.begin(), data.end(), 5);
                              check(self.run(send) == ISTHMUS_SUCCESS, self.failure());
                            }
                            check(self.run(recv) == ISTHMUS_SUCCESS, self.failure());
                            for (int& each : data) ++each;
                            if (me != 0) check(self.run(send) == ISTHMUS_SUCCESS, self.failure());
                            check(data == std::vector<int>(length, 5 + (me == 0 ? n : me)),
                                  "wrong value around the ring");
                          }
                        }),
            failures{});
}

INSTANTIATE_TEST_SUITE_P(, shm_collectives,
                         testing::Values(rank_layout{1, 1}, rank_layout{2, 1}, rank_layout{2, 2},
                                         rank_layout{3, 3}, rank_layout{4, 4}, rank_layout{5, 2},
                                         rank_layout{7, 7}, rank_layout{16, 4}),
                         rank_layout_name);

TEST(shm_backend, many_small_calls_back_to_back) {
  run_setup s;
  s.processes = 4;
  EXPECT_EQ(run_backend(s,
                        [](rank& self) {
                          std::mt19937 shared_random(99);
                          std::vector<std::int32_t> in(256), out(1024);
                          for (int i = 0; i < 5000; ++i) {
                            isthmus_operation operation{};
                            constexpr isthmus_collective kinds[] = {ISTHMUS_ALLREDUCE, ISTHMUS_BROADCAST,
                                                                    ISTHMUS_ALLGATHER, ISTHMUS_REDUCE};
                            constexpr const char* algorithm_names[] = {"packet", "one_shot", "zero_copy"};
                            operation.collective = kinds[shared_random() % 4];
                            operation.datatype = ISTHMUS_INT32;
                            operation.root = static_cast<int>(shared_random() % 4);
                            operation.count = 1 + shared_random() % 256;
                            operation.send_buf = in.data();
                            operation.recv_buf = out.data();
                            std::fill_n(in.begin(), operation.count, i + self.number());
                            std::fill_n(out.begin(), operation.count, -1);
                            check(self.run(operation, algorithm_names[shared_random() % 3]) == ISTHMUS_SUCCESS,
                                  self.failure());
                            const bool reduces = operation.collective == ISTHMUS_ALLREDUCE ||
                                                 operation.collective == ISTHMUS_REDUCE;
                            if (operation.collective == ISTHMUS_REDUCE && operation.root != self.number())
                              continue;
                            const int expected = reduces ? 4 * i + 6
                                                 : operation.collective == ISTHMUS_BROADCAST
                                                     ? i + operation.root
                                                     : i;
                            const auto end = out.begin() + static_cast<std::ptrdiff_t>(operation.count);
                            check(std::all_of(out.begin(), end, [&](int each) { return each == expected; }),
                                  "call " + std::to_string(i));
                          }
                        }),
            failures{});
}

// Complete grids, and grids whose rows differ in length.
TEST(shm_backend, grid_packet_supports_every_number_of_ranks) {
  for (const int ranks : {2, 3, 5, 8, 9, 16, 17}) {
    run_setup s;
    s.ranks = ranks;
    s.processes = 2;
    EXPECT_EQ(run_backend(s,
                          [](rank& self) {
                            std::uint64_t seed = 500;
                            const auto run = [&](collective_case p) {
                              p.algorithm = "grid_packet";
                              p.root = static_cast<int>(seed % static_cast<std::uint64_t>(self.size()));
                              p.in_place = seed % 3 == 0;
                              p.seed = ++seed;
                              check(run_case(self, p), p.describe() + " is not supported");
                            };
                            collective_case p;
                            for (const auto collective :
                                 {ISTHMUS_ALLREDUCE, ISTHMUS_REDUCE, ISTHMUS_ALLGATHER, ISTHMUS_GATHER})
                              for (const std::uint64_t count : {1, 2, 3, 14, 15, 500})
                                p.collective = collective, p.count = count, run(p);
                            for (int datatype = 0; datatype < ISTHMUS_DATATYPE_COUNT; ++datatype)
                              for (int op = 0; op < ISTHMUS_REDUCTION_OP_COUNT; ++op) {
                                p.collective = seed % 2 == 0 ? ISTHMUS_ALLREDUCE : ISTHMUS_REDUCE;
                                p.datatype = static_cast<isthmus_datatype>(datatype);
                                p.op = static_cast<isthmus_reduction_op>(op);
                                p.count = 5;
                                run(p);
                              }
                          }),
              failures{})
        << ranks << " ranks";
  }
}

TEST(shm_backend, reports_unsupported_algorithms) {
  const auto* backend = isthmus::shm_backend();
  EXPECT_EQ(backend->magic, ISTHMUS_BACKEND_MAGIC);
  EXPECT_STREQ(backend->name, "shm");
  EXPECT_EQ(backend->capabilities,
            static_cast<unsigned>(ISTHMUS_BACKEND_BLOCKING | ISTHMUS_BACKEND_RANK_ORDER));
  EXPECT_EQ(
      run_backend(
          run_setup{},
          [](rank& self) {
            isthmus_operation operation{};
            operation.collective = ISTHMUS_ALLREDUCE;
            operation.datatype = ISTHMUS_FLOAT64;
            operation.count = 1;
            for (const char* name : reducing)
              check(self.unsupported_reason(operation, name) == nullptr, std::string("allreduce by ") + name);
            check(self.unsupported_reason(operation, "channel") != nullptr, "allreduce by channel");
            operation.count = std::uint64_t{1} << 61;
            for (const char* name : {"packet", "two_shot_packet", "grid_packet"})
              check(self.unsupported_reason(operation, name) != nullptr,
                    std::string("huge allreduce by ") + name);
            operation.collective = ISTHMUS_BROADCAST;
            operation.count = 1;
            for (const char* name : {"two_shot", "two_shot_packet", "grid_packet"})
              check(self.unsupported_reason(operation, name) != nullptr, std::string("broadcast by ") + name);
          }),
      failures{});
}

}  // namespace
}  // namespace shm_test
