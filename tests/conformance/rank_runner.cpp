#include "rank_runner.hpp"

#include <fmt/format.h>

#include <atomic>
#include <stdexcept>

#include "topology/topology.hpp"

namespace conformance {
namespace {

std::vector<isthmus_communicator> create_all(int size, const isthmus_communicator_options& options) {
  std::vector<isthmus_communicator> communicators(static_cast<std::size_t>(size));
  const std::vector<isthmus_device> devices(communicators.size(), options.device);
  if (isthmus_communicator_create_all(size, devices.data(), &options, communicators.data()) != ISTHMUS_SUCCESS)
    throw std::runtime_error(describe_last_error());
  return communicators;
}

// State shared by the threads of run_in_threads.
struct thread_table {
  int size;
  topology::rendezvous& all = topology::rendezvous::create(size);
  std::vector<isthmus_communicator> communicators{};
  std::string error{};
};

class thread_runner final : public rank_runner {
 public:
  thread_runner(thread_table& table, int rank) : m_table(table), m_rank(rank) {}
  int size() const override { return m_table.size; }
  int rank() const override { return m_rank; }
  const char* topology() const override { return "threads"; }

  std::vector<rank_member> create(const isthmus_communicator_options& options) override {
    if (m_rank == 0) {
      m_table.error.clear();
      try {
        m_table.communicators = create_all(size(), options);
      } catch (const std::runtime_error& failure) {
        m_table.error = failure.what();
      }
    }
    m_table.all.wait();
    const std::string error = m_table.error;
    const isthmus_communicator own_communicator = error.empty() ? m_table.communicators[m_rank] : nullptr;
    m_table.all.wait();
    if (!error.empty()) throw std::runtime_error(error);
    return {{m_rank, own_communicator}};
  }

  std::vector<std::vector<std::uint64_t>> exchange(
      const std::vector<std::vector<std::uint64_t>>& local_hashes) override {
    return m_table.all.exchange(m_rank, local_hashes.front());
  }

 private:
  thread_table& m_table;
  int m_rank;
};

class group_runner final : public rank_runner {
 public:
  explicit group_runner(int size) : m_size(size) {}
  int size() const override { return m_size; }
  int rank() const override { return 0; }
  const char* topology() const override { return "group"; }
  std::vector<rank_member> create(const isthmus_communicator_options& options) override {
    std::vector<rank_member> members;
    for (isthmus_communicator communicator : create_all(m_size, options))
      members.push_back({static_cast<int>(members.size()), communicator});
    return members;
  }
  std::vector<std::vector<std::uint64_t>> exchange(
      const std::vector<std::vector<std::uint64_t>>& local_hashes) override {
    return local_hashes;
  }

 private:
  int m_size;
};

}  // namespace

int run_in_threads(int size, const rank_function& run) {
  thread_table table{size};
  std::atomic<int> failures{0};
  topology::run_on_each_rank(size, [&](int rank) {
    thread_runner runner(table, rank);
    failures += run(runner);
  });
  return failures;
}

int run_in_group(int size, const rank_function& run) {
  group_runner runner(size);
  return run(runner);
}

std::string describe_last_error() {
  const isthmus_error_info info = topology::last_error();
  return fmt::format("{}: {} ({}{}{}{})", isthmus_status_name(info.status), info.message, info.location,
                     info.backend[0] ? ", backend " : "", info.backend,
                     info.hint[0] ? fmt::format("; hint: {}", info.hint) : "");
}

}  // namespace conformance
