#include "topology.hpp"

#include <cstdarg>
#include <cstdio>
#include <thread>

#include "conformance/issue.hpp"
#include "conformance/rank_buffers.hpp"
#include "topology/algorithms.hpp"
#include "topology/threads.hpp"

namespace copy_engine_test {
namespace {

constexpr std::uint64_t heap_id = 7;

std::string format_text(const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

rank_runner& self(void* runtime) { return *static_cast<rank_runner*>(runtime); }

isthmus_status on_fail(void* runtime, isthmus_status status, int64_t, const char*, const char* hint,
                       const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  self(runtime).message = format_text(format, arguments);
  va_end(arguments);
  self(runtime).hint = hint == nullptr ? "" : hint;
  return self(runtime).status = status;
}

// Pins the signals of all tests. The segments belong to a driver, and are never released.
standin_driver& signal_driver() {
  static auto* const driver = new standin_driver(1, {});
  return *driver;
}

void on_log(void* runtime, int level, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (level >= 2) self(runtime).logged.push_back(format_text(format, arguments));
  va_end(arguments);
}

}  // namespace

rank_runner::rank_runner(topology& owner, int number) : m_topology(owner), m_number(number) {
  driver_behavior behavior = owner.m_setup.behavior;
  behavior.seed = behavior.seed * 31 + static_cast<std::uint64_t>(number);
  m_driver = std::make_unique<standin_driver>(1, behavior);
  m_stream = m_driver->create_stream(0, isthmus::stream_priority::normal);
  m_context.struct_bytes = sizeof m_context;
  m_context.runtime = this;
  m_context.rank = m_context.node_rank = number;
  m_context.size = m_context.node_size = m_context.process_size = owner.m_setup.ranks;
  m_context.node_of = m_context.process_of = owner.m_zeros.data();
  m_context.device = {ISTHMUS_PLATFORM_CUDA, 0};
  m_context.timeout_s = owner.m_setup.timeout_s;
  m_context.fail = on_fail;
  m_context.log = on_log;
  m_context.set_awaited_rank = [](void*, int) {};
  m_context.is_aborted = [](void* runtime) { return self(runtime).aborted.load(); };
  m_context.heap_find = [](void* runtime, const void* pointer, uint64_t bytes, isthmus_heap_block* block,
                           uint64_t* offset) {
    rank_runner& own = self(runtime);
    const auto memory = own.heap();
    const auto* address = static_cast<const std::byte*>(pointer);
    if (std::less<>{}(address, memory.data()) || address + bytes > memory.data() + memory.size()) return 0;
    *block = {heap_id, memory.size(), own.m_topology.m_heap_peers.data()};
    *offset = static_cast<uint64_t>(address - memory.data());
    return 1;
  };
  m_state =
      std::make_unique<isthmus::copy_engine::copy_engine_state>(m_context, *m_driver, owner.m_setup.options);
  m_state->set_compiler(m_compiler);
  m_signals =
      isthmus::signal_memory(signal_driver(), owner.size(), isthmus::copy_engine::peer_memory::flags.bytes());
}

void rank_runner::open(std::span<const isthmus::signal_block_address> signals) {
  m_signals.open(signals);
  m_state->open(std::move(m_signals), {1, m_topology.m_shared[0].size(), m_topology.m_shared_peers.data()});
}

std::span<std::byte> rank_runner::heap() { return m_topology.m_heap[static_cast<std::size_t>(m_number)]; }

isthmus_status rank_runner::enqueue(isthmus_operation operation, const char* algorithm) {
  operation.stream = m_stream;
  const int index = ::topology::algorithm_index(isthmus::copy_engine::algorithm_names, algorithm);
  return m_state->enqueue(&operation, &index, 1);
}

isthmus_status rank_runner::run(const isthmus_operation& operation, const char* algorithm) {
  const isthmus_status result = enqueue(operation, algorithm);
  m_driver->synchronize(0, m_stream);
  return result;
}

std::optional<std::string> rank_runner::run_case(const conformance::test_case& test, const char* algorithm) {
  const oracle::operation_shape shape = conformance::shape_of(test, m_topology.size());
  const std::size_t bytes = conformance::rank_buffers::required_bytes(test, shape);
  if (m_plain.size() < bytes) m_plain.resize(bytes);
  if (test.heap && bytes > heap().size()) return "the heap is too small for " + conformance::to_string(test);
  const conformance::rank_buffers buffers(test, shape, m_number, test.heap ? heap() : std::span(m_plain));
  if (run(conformance::operation_of(test, shape, buffers.addresses(), m_number), algorithm) != ISTHMUS_SUCCESS)
    return message;
  return buffers.find_error(true, true, false);
}

topology::topology(const test_setup& setup)
    : m_setup(setup), m_zeros(static_cast<std::size_t>(setup.ranks), 0) {
  for (int number = 0; number < setup.ranks; ++number) {
    m_heap.emplace_back(setup.heap_bytes);
    m_shared.emplace_back(isthmus::copy_engine::peer_memory::bytes_for(setup.options.staging_bytes));
    m_heap_peers.push_back(m_heap.back().data());
    m_shared_peers.push_back(m_shared.back().data());
  }
  for (int number = 0; number < setup.ranks; ++number)
    m_ranks.push_back(std::make_unique<rank_runner>(*this, number));
  std::vector<isthmus::signal_block_address> signals;
  for (const auto& rank : m_ranks) signals.push_back(rank->signals());
  for (const auto& rank : m_ranks) rank->open(signals);
}

// Destruction waits until the peers have fetched their data, so all ranks must be destroyed concurrently.
topology::~topology() {
  for_each_rank([](rank_runner& runner) { runner.destroy_state(); });
}

void topology::for_each_rank(const std::function<void(rank_runner&)>& work) {
  ::topology::run_on_each_rank(size(), [&](int number) { work(at(number)); });
}

}  // namespace copy_engine_test
