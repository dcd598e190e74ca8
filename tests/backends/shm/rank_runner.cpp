#include "rank_runner.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>

#include "backends/shm/algorithms.hpp"
#include "base/process.hpp"
#include "base/tables.hpp"
#include "topology/algorithms.hpp"
#include "topology/topology.hpp"

namespace shm_test {
namespace {

constexpr int max_ranks = 64;
constexpr std::size_t exchange_bytes = 4096;

}  // namespace

struct shared_area {
  std::atomic<int> arrivals{0}, round{0}, failed_ranks{0};
  std::byte exchange[max_ranks][exchange_bytes];
  char failure_text[max_ranks][1024];
  std::int64_t pid[max_ranks];
  std::byte* heap;  // same address in all processes, because it is mapped before the forks
};

namespace {

void wait_at_barrier(shared_area& area, int ranks) {
  const int round = area.round.load();
  if (area.arrivals.fetch_add(1) + 1 == ranks) {
    area.arrivals = 0;
    ++area.round;
  }
  while (area.round.load() == round) {
    if (area.failed_ranks != 0) throw std::runtime_error("another rank failed before this barrier");
    ::sched_yield();
  }
}

}  // namespace

rank::rank(shared_area& area, const run_setup& setup, int number) : m_area(area), m_setup(setup) {
  for (int r = 0; r < setup.ranks; ++r) {
    m_node_of.push_back(setup.node_of.empty() ? 0 : setup.node_of[static_cast<std::size_t>(r)]);
    m_process_of.push_back(r % setup.processes);
    m_pid_of.push_back(0);
    for (int b = 0; b < heap_blocks; ++b)
      m_peers[b].push_back(area.heap +
                           (static_cast<std::size_t>(r) * heap_blocks + static_cast<std::size_t>(b)) *
                               heap_block_bytes);
  }
  m_context.struct_bytes = sizeof(m_context);
  m_context.runtime = this;
  m_context.rank = m_context.node_rank = number;
  m_context.size = m_context.node_size = setup.ranks;
  for (int r = 0; r < setup.ranks; ++r) m_context.process_size += m_process_of[r] == m_process_of[number];
  m_context.node_of = m_node_of.data();
  m_context.process_of = m_process_of.data();
  m_context.pid_of = m_pid_of.data();
  m_context.timeout_s = setup.timeout_s;
  static constexpr isthmus_mpi_table no_functions{};
  m_context.mpi = setup.has_mpi_bootstrap ? &no_functions : nullptr;
  m_context.allgather = allgather;
  m_context.option = option;
  m_context.fail = fail;
  m_context.fail_with_ranks = fail_with_ranks;
  m_context.log = log;
  m_context.is_aborted = is_aborted;
  m_context.heap_find = heap_find;
  m_context.progress = [](void*) { return 0; };
  m_context.set_awaited_rank = set_awaited_rank;
  area.pid[number] = ::getpid();
}

rank::~rank() { destroy(); }

const isthmus_backend& rank::functions() const {
  return *(m_setup.backend == nullptr ? isthmus::shm_backend() : m_setup.backend);
}

isthmus_status rank::create() { return functions().create(&m_context, &m_state); }

void rank::destroy() {
  if (m_state != nullptr) functions().destroy(m_state);
  m_state = nullptr;
}

isthmus_status rank::run(const isthmus_operation& operation, const char* algorithm) {
  const int index = topology::algorithm_index(functions().algorithms, algorithm);
  return functions().enqueue(m_state, &operation, &index, 1);
}

isthmus_status rank::run(const std::vector<isthmus_operation>& batch) {
  const std::vector<int> algorithms(batch.size(), ISTHMUS_ANY_ALGORITHM);
  return functions().enqueue(m_state, batch.data(), algorithms.data(), batch.size());
}

const char* rank::unsupported_reason(const isthmus_operation& operation, const char* algorithm) const {
  const isthmus_operation agreed_call = isthmus::agreed_operation(operation, size());
  return functions().supports(m_state, &agreed_call,
                              topology::algorithm_index(functions().algorithms, algorithm));
}

void rank::abort() { functions().abort(m_state); }
void rank::barrier() { wait_at_barrier(m_area, size()); }
std::byte* rank::heap(int block) const { return static_cast<std::byte*>(m_peers[block][m_context.rank]); }

isthmus_status rank::allgather(void* runtime, const void* own_data, void* all, std::size_t bytes) {
  auto& self = *static_cast<rank*>(runtime);
  check(bytes <= exchange_bytes, "the test's exchange area is too small");
  std::memcpy(self.m_area.exchange[self.number()], own_data, bytes);
  self.barrier();
  for (int r = 0; r < self.size(); ++r)
    std::memcpy(static_cast<std::byte*>(all) + static_cast<std::size_t>(r) * bytes, self.m_area.exchange[r],
                bytes);
  self.barrier();
  return ISTHMUS_SUCCESS;
}

const char* rank::option(void* runtime, const char* key) {
  const auto& options = static_cast<rank*>(runtime)->m_setup.options;
  const auto entry = options.find(key);
  return entry == options.end() ? nullptr : entry->second.c_str();
}

isthmus_status rank::fail(void* runtime, isthmus_status status, std::int64_t, const char*, const char*,
                          const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  static_cast<rank*>(runtime)->store_failure(status, format, arguments);
  va_end(arguments);
  return status;
}

isthmus_status rank::fail_with_ranks(void* runtime, const int*, std::size_t, isthmus_status status,
                                     std::int64_t, const char*, const char*, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  static_cast<rank*>(runtime)->store_failure(status, format, arguments);
  va_end(arguments);
  return status;
}

void rank::store_failure(isthmus_status status, const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof(text), format, arguments);
  m_failure_status = status;
  m_failure = text;
  // Like the runtime, adds the state of the awaited process.
  if (const int awaited = m_awaited_rank; status == ISTHMUS_ERROR_TIMEOUT && awaited >= 0)
    if (isthmus::read_process_state(m_area.pid[awaited]) == isthmus::process_state::stopped)
      m_failure += "; rank " + std::to_string(awaited) + " is stopped";
}

void rank::log(void*, int, const char*, ...) {}

void rank::set_awaited_rank(void* runtime, int rank) {
  static_cast<shm_test::rank*>(runtime)->m_awaited_rank = rank;
}

int rank::is_aborted(void* runtime) { return static_cast<rank*>(runtime)->m_aborted ? 1 : 0; }

int rank::heap_find(void* runtime, const void* pointer, std::uint64_t bytes, isthmus_heap_block* block,
                    std::uint64_t* offset) {
  auto& self = *static_cast<rank*>(runtime);
  for (int b = 0; b < heap_blocks; ++b) {
    const auto distance =
        reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(self.heap(b));
    if (distance >= heap_block_bytes || bytes > heap_block_bytes - distance) continue;
    *block = {static_cast<std::uint64_t>(b), heap_block_bytes, self.m_peers[b].data()};
    *offset = distance;
    return 1;
  }
  return 0;
}

void check(bool condition, const std::string& text) {
  if (!condition) throw std::runtime_error(text);
}

namespace {

void run_one(shared_area& area, const run_setup& setup, int number, const std::function<void(rank&)>& body) {
  try {
    rank self(area, setup, number);
    body(self);
  } catch (const std::exception& error) {
    std::snprintf(area.failure_text[number], sizeof(area.failure_text[number]), "rank %d: %s", number,
                  error.what());
    ++area.failed_ranks;
  }
}

void run_process(shared_area& area, const run_setup& setup, int process,
                 const std::function<void(rank&)>& body) {
  const int other_ranks = (setup.ranks - process - 1) / setup.processes;
  std::jthread other_threads([&] {
    ::topology::run_on_each_rank(
        other_ranks, [&](int i) { run_one(area, setup, process + (i + 1) * setup.processes, body); });
  });
  run_one(area, setup, process, body);
  other_threads.join();
}

}  // namespace

std::vector<std::string> run_ranks(const run_setup& setup, const std::function<void(rank&)>& body,
                                   int may_die) {
  auto& area = *new (::topology::map_shared(sizeof(shared_area))) shared_area;
  const std::size_t heap_bytes = static_cast<std::size_t>(setup.ranks) * heap_blocks * heap_block_bytes;
  area.heap = ::topology::map_shared(heap_bytes);
  ::topology::child_processes children;
  for (int process = 1; process < setup.processes; ++process)
    children.start(process, [&] {
      run_process(area, setup, process, body);
      return 0;
    });
  run_process(area, setup, 0, body);
  std::vector<std::string> failures;
  for (const auto& [process, status] : children.join(std::chrono::minutes(10)))
    if (status != 0 && process != may_die)
      failures.push_back("process " + std::to_string(process) + " ended with status " + std::to_string(status));
  for (int r = 0; r < setup.ranks; ++r)
    if (area.failure_text[r][0] != '\0') failures.emplace_back(area.failure_text[r]);
  ::munmap(area.heap, heap_bytes);
  ::munmap(&area, sizeof(area));
  return failures;
}

std::vector<std::string> run_backend(const run_setup& setup, const std::function<void(rank&)>& body) {
  return run_ranks(setup, [&body](rank& self) {
    check(self.create() == ISTHMUS_SUCCESS, "create: " + self.failure());
    body(self);
    self.destroy();
  });
}

}  // namespace shm_test
