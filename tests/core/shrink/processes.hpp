// Ranks that are killed, stopped and replaced. Each rank is a process, so that the test process has no threads.
#pragma once

#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "topology/topology.hpp"

namespace shrink_test {

using namespace std::chrono_literals;

// State shared by the processes of one test.
struct shared_state {
  static constexpr int max_ranks = 8;
  std::atomic<pid_t> pids[max_ranks]{};
  std::atomic<int> ids{0};  // ids created so far
  isthmus_unique_id id[64]{};
  std::atomic<int> running{0};        // ranks that have completed their first operation
  std::atomic<int> step{0};           // progress of the test
  std::atomic<bool> all_done{false};  // set by the test: no further rank is killed
  std::atomic<int> end{0};            // the step at which all ranks stop; 0: not decided yet
};

inline shared_state& new_shared_state() {
  return *new (topology::map_shared(sizeof(shared_state))) shared_state;
}

template <typename Condition>
bool wait_until(Condition&& condition, std::chrono::seconds max_wait = 60s) {
  const auto end = std::chrono::steady_clock::now() + max_wait;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// The n-th id of a test. The process that creates it serves its store.
inline isthmus_unique_id share_id(shared_state& shared, int n, bool is_creator) {
  if (is_creator) {
    EXPECT_EQ(isthmus_unique_id_create(nullptr, &shared.id[n]), ISTHMUS_SUCCESS);
    shared.ids = n + 1;
  }
  EXPECT_TRUE(wait_until([&] { return shared.ids > n; }));
  return shared.id[n];
}

inline isthmus_communicator create(shared_state& shared, int n, int rank, int size, double timeout_s = 20) {
  const isthmus_unique_id id = share_id(shared, n, rank == 0);
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = timeout_s;
  isthmus_communicator result = nullptr;
  EXPECT_EQ(isthmus_communicator_create(&id, rank, size, &options, &result), ISTHMUS_SUCCESS)
      << topology::last_error().message;
  return result;
}

// The contribution of a rank to element i of operation `step`. Ranks are numbered by their rank
// in the first communicator.
inline std::int64_t value(int rank_number, int step, std::uint64_t i) {
  std::uint64_t x =
      (static_cast<std::uint64_t>(rank_number) << 40) ^ (static_cast<std::uint64_t>(step) << 20) ^ i;
  x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::int64_t>((x ^ x >> 31) & 0xffffff);
}

// One rank of a communicator. `members` are its ranks, by their numbers in the first communicator.
class test_rank {
 public:
  test_rank(isthmus_communicator communicator, std::vector<int> members)
      : m_communicator(communicator), m_members(std::move(members)) {
    isthmus_communicator_rank(m_communicator, &m_rank);
  }
  test_rank(const test_rank&) = delete;
  test_rank& operator=(const test_rank&) = delete;
  ~test_rank() { EXPECT_EQ(isthmus_communicator_destroy(m_communicator), ISTHMUS_SUCCESS); }

  isthmus_communicator native() const { return m_communicator; }
  const std::vector<int>& members() const { return m_members; }
  int rank() const { return m_rank; }

  // Runs operation `step`, of varying kind and size, and checks the result against the
  // contributions of all members.
  isthmus_status run(int step) {
    const auto kind = static_cast<unsigned>(value(99, step, 0)) % 4;
    const std::uint64_t count = kind == 3 ? 40000 : 1 + static_cast<std::uint64_t>(value(99, step, 1)) % 3000;
    const std::uint64_t n = m_members.size();
    m_send.resize(n * count);
    m_recv.assign(n * count, -1);
    const int number = m_members[static_cast<std::size_t>(m_rank)];
    for (std::uint64_t i = 0; i < m_send.size(); ++i) m_send[i] = value(number, step, i);
    switch (kind) {
      case 0:
        return finish(broadcast(step, count), count,
                      [&](auto i) { return value(m_members[root(step)], step, i); });
      case 1:
        return finish(
            isthmus_allgather(m_send.data(), m_recv.data(), count, ISTHMUS_INT64, m_communicator, nullptr),
            n * count, [&](auto i) { return value(m_members[i / count], step, i % count); });
      case 2:
        return finish(isthmus_reduce_scatter(m_send.data(), m_recv.data(), count, ISTHMUS_INT64, ISTHMUS_SUM,
                                             m_communicator, nullptr),
                      count, [&](auto i) { return sum(step, static_cast<std::uint64_t>(m_rank) * count + i); });
      default:
        return finish(isthmus_allreduce(m_send.data(), m_recv.data(), count, ISTHMUS_INT64, ISTHMUS_SUM,
                                        m_communicator, nullptr),
                      count, [&](auto i) { return sum(step, i); });
    }
  }

  // The step at which all ranks can continue: some may have completed an operation that failed on
  // others. -1 on failure.
  int min_step(int step) {
    std::int64_t local_value = step, all = -1;
    const isthmus_status status =
        isthmus_allreduce(&local_value, &all, 1, ISTHMUS_INT64, ISTHMUS_MIN, m_communicator, nullptr);
    return status == ISTHMUS_SUCCESS ? static_cast<int>(all) : -1;
  }

  isthmus_status shrink(double wait_s, isthmus_communicator& result) const {
    return isthmus_communicator_shrink(m_communicator, wait_s, &result);
  }

  // The numbers of the ranks of a communicator that was created from this one.
  std::vector<int> members_of(isthmus_communicator subcommunicator) const {
    int size = 0;
    EXPECT_EQ(isthmus_communicator_size(subcommunicator, &size), ISTHMUS_SUCCESS);
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank) {
      int parent_rank = -1;
      EXPECT_EQ(isthmus_communicator_parent_rank(subcommunicator, rank, &parent_rank), ISTHMUS_SUCCESS);
      members.push_back(m_members.at(static_cast<std::size_t>(parent_rank)));
    }
    return members;
  }

 private:
  std::size_t root(int step) const { return static_cast<std::size_t>(step) % m_members.size(); }
  std::int64_t sum(int step, std::uint64_t i) const {
    std::int64_t all = 0;
    for (const int each : m_members) all += value(each, step, i);
    return all;
  }
  isthmus_status broadcast(int step, std::uint64_t count) {
    return isthmus_broadcast(m_send.data(), m_recv.data(), count, ISTHMUS_INT64, static_cast<int>(root(step)),
                             m_communicator, nullptr);
  }
  template <typename Expected>
  isthmus_status finish(isthmus_status status, std::uint64_t count, Expected&& expected) const {
    if (status != ISTHMUS_SUCCESS) return status;
    for (std::uint64_t i = 0; i < count; ++i)
      if (m_recv[i] != expected(i)) {
        ADD_FAILURE() << "element " << i << " of " << count << " is " << m_recv[i] << ", not " << expected(i);
        break;
      }
    return status;
  }

  isthmus_communicator m_communicator;
  std::vector<int> m_members;
  int m_rank = -1;
  std::vector<std::int64_t> m_send, m_recv;
};

inline std::vector<int> all_ranks(int size) {
  std::vector<int> numbers;
  for (int rank = 0; rank < size; ++rank) numbers.push_back(rank);
  return numbers;
}

// The processes of one test. Expectations that fail in `body` make its process fail.
class rank_processes {
 public:
  explicit rank_processes(shared_state& shared) : m_shared(shared) {}

  void start(int rank, const std::function<void()>& body) {
    m_children.start(rank, [this, rank, &body] {
      m_shared.pids[rank] = getpid();
      body();
      const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
      return test->result()->Failed() ? 1 : 0;
    });
  }
  // All processes except `lost` must have succeeded.
  void join(const std::vector<int>& lost_ranks) {
    for (const auto& exit_report : m_children.join()) {
      if (std::find(lost_ranks.begin(), lost_ranks.end(), exit_report.process) == lost_ranks.end()) {
        EXPECT_EQ(exit_report.failures(), 0) << "rank " << exit_report.process;
      } else {
        EXPECT_TRUE(WIFSIGNALED(exit_report.status))
            << "rank " << exit_report.process << " must have been killed";
      }
    }
  }

 private:
  shared_state& m_shared;
  topology::child_processes m_children;
};

}  // namespace shrink_test
