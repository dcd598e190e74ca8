// Runs ranks in separate processes, forked before any thread exists, so that each process is an independent
// user of the library.
#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "rank_runner.hpp"
#include "topology/topology.hpp"

namespace conformance {
namespace {

class process_runner final : public rank_runner {
 public:
  process_runner(topology::rendezvous& barrier, int rank, int size, int threads)
      : m_barrier(barrier), m_rank(rank), m_size(size), m_threads(threads) {}
  int size() const override { return m_size; }
  int rank() const override { return m_rank; }
  const char* topology() const override { return m_threads > 1 ? "mixed" : "processes"; }

  std::vector<rank_member> create(const isthmus_communicator_options& options) override {
    const isthmus_unique_id id = m_barrier.new_unique_id(m_rank);
    isthmus_communicator communicator = nullptr;
    if (isthmus_communicator_create(&id, m_rank, m_size, &options, &communicator) != ISTHMUS_SUCCESS)
      throw std::runtime_error(describe_last_error());
    return {{m_rank, communicator}};
  }

  std::vector<std::vector<std::uint64_t>> exchange(
      const std::vector<std::vector<std::uint64_t>>& local_hashes) override {
    return m_barrier.exchange(m_rank, local_hashes.front());
  }

 private:
  topology::rendezvous& m_barrier;
  int m_rank, m_size, m_threads;
};

// Runs the ranks of one process. The main thread runs the first rank.
int run_child(topology::rendezvous& barrier, int first_rank, int size, int threads, const rank_function& run) {
  const int count = std::min(threads, size - first_rank);
  std::atomic<int> failures{0};
  const auto run_rank = [&](int rank) {
    process_runner runner(barrier, rank, size, threads);
    failures += run(runner);
  };
  std::jthread others(
      [&] { topology::run_on_each_rank(count - 1, [&](int i) { run_rank(first_rank + 1 + i); }); });
  run_rank(first_rank);
  others.join();
  return failures;
}

}  // namespace

int run_in_processes(int size, int threads, const rank_function& run) {
  topology::rendezvous& barrier = topology::rendezvous::create(size);
  topology::child_processes children;
  for (int first = 0; first < size; first += threads)
    children.start(first, [&] { return run_child(barrier, first, size, threads, run); });
  int failures = 0;
  for (const auto& child : children.join()) failures += child.failures();
  return failures;
}

}  // namespace conformance
