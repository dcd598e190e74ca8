// Ranks in processes of their own, made by fork before any thread exists, so that each is a whole and
// separate user of the library.
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>

#include "seat.hpp"

namespace conformance {
namespace {

constexpr int most_ranks = 16;
constexpr std::size_t most_values = 1u << 20;

// Memory that all processes share.
struct process_table {
  pthread_barrier_t gate;
  isthmus_unique_id id;
  std::atomic<bool> id_failed;
  std::size_t counts[most_ranks];
  std::uint64_t values[most_ranks][most_values];  // pages appear when they are used
};

process_table* make_table(int size) {
  void* memory = mmap(nullptr, sizeof(process_table), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap of the shared table failed");
  auto* table = new (memory) process_table;
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&table->gate, &attributes, static_cast<unsigned>(size));
  pthread_barrierattr_destroy(&attributes);
  return table;
}

class process_seat final : public seat {
 public:
  process_seat(process_table& table, int rank, int size, int threads)
      : m_table(table), m_rank(rank), m_size(size), m_threads(threads) {}
  int size() const override { return m_size; }
  const char* world() const override { return m_threads > 1 ? "mixed" : "processes"; }

  std::vector<member> create(const isthmus_communicator_options& options) override {
    if (m_rank == 0) m_table.id_failed = isthmus_unique_id_create(nullptr, &m_table.id) != ISTHMUS_SUCCESS;
    pthread_barrier_wait(&m_table.gate);
    if (m_table.id_failed)
      throw std::runtime_error(m_rank == 0 ? describe_last_error() : "rank 0 has no unique id");
    const isthmus_unique_id id = m_table.id;
    isthmus_communicator communicator = nullptr;
    const isthmus_status status = isthmus_communicator_create(&id, m_rank, m_size, &options, &communicator);
    pthread_barrier_wait(&m_table.gate);  // the id may be replaced from here on
    if (status != ISTHMUS_SUCCESS) throw std::runtime_error(describe_last_error());
    return {{m_rank, communicator}};
  }

  std::vector<std::vector<std::uint64_t>> exchange(
      const std::vector<std::vector<std::uint64_t>>& mine) override {
    if (mine.front().size() > most_values) throw std::runtime_error("too many values to exchange");
    m_table.counts[m_rank] = mine.front().size();
    std::copy(mine.front().begin(), mine.front().end(), m_table.values[m_rank]);
    pthread_barrier_wait(&m_table.gate);
    std::vector<std::vector<std::uint64_t>> all;
    for (int rank = 0; rank < m_size; ++rank)
      all.emplace_back(m_table.values[rank], m_table.values[rank] + m_table.counts[rank]);
    pthread_barrier_wait(&m_table.gate);
    return all;
  }

 private:
  process_table& m_table;
  int m_rank, m_size, m_threads;
};

int run_child(process_table& table, int first_rank, int size, int threads, const play& play) {
  const int count = std::min(threads, size - first_rank);
  std::atomic<int> failures{0};
  const auto run = [&](int rank) {
    process_seat seat(table, rank, size, threads);
    failures += play(seat);
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < count; ++i) others.emplace_back(run, first_rank + i);
  run(first_rank);
  others.clear();
  return failures;
}

// Waits for all children; once one has died, the others, which may wait for it, get a grace period.
int join(std::vector<pid_t> children) {
  constexpr auto grace = std::chrono::seconds(30);
  int failures = 0;
  bool died = false;
  auto deadline = std::chrono::steady_clock::time_point::max();
  while (!children.empty()) {
    for (auto child = children.begin(); child != children.end();) {
      int status = 0;
      if (waitpid(*child, &status, WNOHANG) == 0) {
        ++child;
        continue;
      }
      if (!WIFEXITED(status)) {
        fmt::print("FAIL process {} died of signal {}\n", *child, WTERMSIG(status));
        died = true;
        deadline = std::chrono::steady_clock::now() + grace;
      }
      failures += WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      child = children.erase(child);
    }
    if (died && std::chrono::steady_clock::now() > deadline)
      for (const pid_t child : children) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return failures;
}

}  // namespace

int run_in_processes(int size, int threads, const play& play) {
  process_table* table = make_table(size);
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int first = 0; first < size; first += threads) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child == 0) {
      const int failures = run_child(*table, first, size, threads, play);
      std::fflush(stdout);
      std::_Exit(std::min(failures, 100));
    }
    children.push_back(child);
  }
  return join(std::move(children));
}

}  // namespace conformance
