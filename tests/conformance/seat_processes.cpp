// Ranks in processes of their own, made by fork before any thread exists, so that each is a whole and
// separate user of the library.
#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "seat.hpp"
#include "world/world.hpp"

namespace conformance {
namespace {

class process_seat final : public seat {
 public:
  process_seat(world::meeting& all, int rank, int size, int threads)
      : m_all(all), m_rank(rank), m_size(size), m_threads(threads) {}
  int size() const override { return m_size; }
  int rank() const override { return m_rank; }
  const char* world() const override { return m_threads > 1 ? "mixed" : "processes"; }

  std::vector<member> create(const isthmus_communicator_options& options) override {
    const isthmus_unique_id id = m_all.fresh_id(m_rank);
    isthmus_communicator communicator = nullptr;
    if (isthmus_communicator_create(&id, m_rank, m_size, &options, &communicator) != ISTHMUS_SUCCESS)
      throw std::runtime_error(describe_last_error());
    return {{m_rank, communicator}};
  }

  std::vector<std::vector<std::uint64_t>> exchange(
      const std::vector<std::vector<std::uint64_t>>& mine) override {
    return m_all.exchange(m_rank, mine.front());
  }

 private:
  world::meeting& m_all;
  int m_rank, m_size, m_threads;
};

// The ranks of one process; its own thread is the first one's.
int run_child(world::meeting& all, int first_rank, int size, int threads, const play& play) {
  const int count = std::min(threads, size - first_rank);
  std::atomic<int> failures{0};
  const auto run = [&](int rank) {
    process_seat seat(all, rank, size, threads);
    failures += play(seat);
  };
  std::jthread others([&] { world::on_each(count - 1, [&](int i) { run(first_rank + 1 + i); }); });
  run(first_rank);
  others.join();
  return failures;
}

}  // namespace

int run_in_processes(int size, int threads, const play& play) {
  world::meeting& all = world::meeting::make(size);
  world::children children;
  for (int first = 0; first < size; first += threads)
    children.start(first, [&] { return run_child(all, first, size, threads, play); });
  int failures = 0;
  for (const auto& child : children.join()) failures += child.failures();
  return failures;
}

}  // namespace conformance
