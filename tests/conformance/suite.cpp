#include "suite.hpp"

#include <fmt/format.h>
#include <isthmus/memory.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <thread>

#include "engines.hpp"
#include "issue.hpp"

namespace conformance {
namespace {

constexpr std::uint64_t heap_bytes = 3u << 20;
constexpr int max_reports = 10;
constexpr std::uint64_t check_everywhere_below = 4096;  // elements

// One rank of this runner while an engine is tested.
struct rank_context {
  rank_member member;
  void* heap = nullptr;
  std::vector<std::uint64_t> hashes;  // one per case, compared across ranks
};

// Memory and layout of one rank for one case.
struct prepared_case {
  std::vector<std::byte> own;
  std::optional<rank_buffers> buffers;
};

class engine_run {
 public:
  engine_run(rank_runner& runner, const suite_options& options, engine_spec engine)
      : m_runner(runner), m_options(options), m_engine(std::move(engine)) {}

  int run();

 private:
  using batch = std::vector<test_case>;

  void open();
  void close();
  void run_single(const test_case& test);
  void run_back_to_back(const batch& tests);
  void run_grouped(const batch& tests);
  std::vector<std::vector<prepared_case>> prepare(const batch& tests);
  void check(const batch& tests, std::vector<std::vector<prepared_case>>& memory);
  void compare_ranks();
  bool is_selected(const test_case& test);
  void report(int rank, const test_case& test, const std::string& problem);
  bool drives_group() const { return m_ranks.size() > 1; }

  rank_runner& m_runner;
  const suite_options& m_options;
  engine_spec m_engine;
  std::vector<rank_context> m_ranks;
  std::vector<test_case> m_issued;
  int m_failures = 0;
  bool m_is_broken = false;  // a call failed and may have aborted the communicator: issue no more calls
};

void engine_run::report(int rank, const test_case& test, const std::string& problem) {
  if (++m_failures > max_reports) return;
  const std::string line = fmt::format(
      "FAIL rank {}: {} | conformance --topology {} --ranks {} --engine {} --seed {} --case {}\n", rank,
      problem, m_runner.topology(), m_runner.size(), m_engine.name, m_options.plan.seed, to_string(test));
  std::fputs(line.c_str(), stdout);  // one write, so that lines of several ranks do not interleave
  std::fflush(stdout);
}

void engine_run::open() {
  const config_file config(m_engine);
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = config.path();
  options.timeout_s = m_options.timeout_s;
  for (const rank_member& member : m_runner.create(options)) m_ranks.push_back({member, nullptr, {}});
  // Collective, so each rank of a runner needs a thread.
  std::atomic<int> failed{0};
  std::vector<std::jthread> threads;
  for (rank_context& context : m_ranks)
    threads.emplace_back([&] {
      failed += isthmus_memory_allocate_symmetric(context.member.communicator, heap_bytes, &context.heap) !=
                ISTHMUS_SUCCESS;
    });
  threads.clear();  // joins
  if (failed > 0) throw std::runtime_error("cannot allocate the symmetric heap");
}

void engine_run::close() {
  for (const rank_context& context : m_ranks)
    if (isthmus_memory_free_symmetric(context.member.communicator, context.heap) != ISTHMUS_SUCCESS ||
        isthmus_communicator_destroy(context.member.communicator) != ISTHMUS_SUCCESS)
      report(context.member.rank, {}, describe_last_error());
}

// memory[i][p]: case i on the p-th rank of this runner.
std::vector<std::vector<prepared_case>> engine_run::prepare(const batch& tests) {
  std::vector<std::vector<prepared_case>> memory(tests.size());
  std::size_t heap_used = 0;
  for (std::size_t i = 0; i < tests.size(); ++i) {
    const oracle::operation_shape shape = shape_of(tests[i], m_runner.size());
    const std::size_t bytes = rank_buffers::required_bytes(tests[i], shape);
    const bool heap = tests[i].heap && heap_used + bytes <= heap_bytes;  // equal on all ranks
    for (const rank_context& context : m_ranks) {
      prepared_case& entry = memory[i].emplace_back();
      if (!heap) entry.own.resize(bytes + 64);
      std::byte* start = heap ? static_cast<std::byte*>(context.heap) + heap_used : entry.own.data();
      entry.buffers.emplace(tests[i], shape, context.member.rank, std::span(start, bytes));
    }
    if (heap) heap_used += (bytes + 255) / 256 * 256;
  }
  return memory;
}

void engine_run::check(const batch& tests, std::vector<std::vector<prepared_case>>& memory) {
  for (std::size_t i = 0; i < tests.size(); ++i) {
    m_issued.push_back(tests[i]);
    const bool is_compared = tests[i].collective == ISTHMUS_ALLREDUCE;  // all ranks must have the same bits
    for (std::size_t p = 0; p < m_ranks.size(); ++p) {
      rank_context& context = m_ranks[p];
      const rank_buffers& buffers = *memory[i][p].buffers;
      context.hashes.push_back(is_compared ? buffers.hash() : 0);
      if (m_is_broken) continue;
      // If ranks are compared bit by bit, it is sufficient to check the values of one rank.
      const bool values =
          !is_compared || tests[i].count < check_everywhere_below ||
          static_cast<int>(tests[i].seed % static_cast<std::uint64_t>(m_runner.size())) == context.member.rank;
      if (const auto error = buffers.find_error(true, values, m_engine.steps_in_type))
        report(context.member.rank, tests[i], *error);
    }
  }
}

bool engine_run::is_selected(const test_case& test) {
  if (m_engine.is_default) return true;
  const oracle::operation_shape shape = shape_of(test, m_runner.size());
  // Only the addresses are used: nothing is written before the engine is known to run the call.
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(rank_buffers::required_bytes(test, shape));
  const rank_member& member = m_ranks.front().member;
  return uses_engine(member.communicator,
                     operation_of(test, shape, place(test, shape, member.rank, memory.get()), member.rank),
                     m_engine, test.seed % 16 == 0);
}

void engine_run::run_single(const test_case& test) {
  if (m_is_broken || !is_selected(test)) return;
  auto memory = prepare({test});
  const oracle::operation_shape shape = shape_of(test, m_runner.size());
  const bool plain_pairs = !drives_group() && can_be_plain_pairs(shape) && test.seed % 4 < 2;
  isthmus_status status = ISTHMUS_SUCCESS;
  if (drives_group()) isthmus_group_start();
  for (std::size_t p = 0; p < m_ranks.size() && status == ISTHMUS_SUCCESS; ++p)
    status = issue(test, shape, *memory[0][p].buffers, m_ranks[p].member, plain_pairs);
  if (drives_group()) {
    const isthmus_status end = isthmus_group_end();
    if (status == ISTHMUS_SUCCESS) status = end;
  }
  if (status != ISTHMUS_SUCCESS) {
    report(m_ranks.front().member.rank, test, describe_last_error());
    m_is_broken = true;
  }
  check({test}, memory);
}

// Back to back: the buffers of a call are overwritten as soon as it returns, and fast ranks start a call while
// others are still in an earlier one.
void engine_run::run_back_to_back(const batch& tests) {
  if (m_is_broken || drives_group()) return;
  auto memory = prepare(tests);
  const rank_member& member = m_ranks.front().member;
  for (std::size_t i = 0; i < tests.size() && !m_is_broken; ++i) {
    const oracle::operation_shape shape = shape_of(tests[i], m_runner.size());
    const std::uint64_t skew = oracle::mix(tests[i].seed, 40, static_cast<std::uint64_t>(member.rank));
    if (skew % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds((skew >> 8) % 300));
    rank_buffers& buffers = *memory[i][0].buffers;
    if (issue(tests[i], shape, buffers, member, false) != ISTHMUS_SUCCESS) {
      report(member.rank, tests[i], fmt::format("call {} of a batch: {}", i, describe_last_error()));
      m_is_broken = true;
    } else if (const auto error = buffers.find_error(true, false, false)) {
      report(member.rank, tests[i], fmt::format("call {} of a batch: {}", i, *error));
    }
    buffers.reuse_send_buffer();
  }
  check(tests, memory);
}

void engine_run::run_grouped(const batch& tests) {
  if (m_is_broken) return;
  auto memory = prepare(tests);
  isthmus_group_start();
  isthmus_status status = ISTHMUS_SUCCESS;
  for (std::size_t p = 0; p < m_ranks.size(); ++p)
    for (std::size_t i = 0; i < tests.size() && status == ISTHMUS_SUCCESS; ++i)
      status =
          issue(tests[i], shape_of(tests[i], m_runner.size()), *memory[i][p].buffers, m_ranks[p].member, false);
  const isthmus_status end = isthmus_group_end();
  if (status != ISTHMUS_SUCCESS || end != ISTHMUS_SUCCESS) {
    report(m_ranks.front().member.rank, tests.front(),
           fmt::format("a group of {} calls: {}", tests.size(), describe_last_error()));
    m_is_broken = true;
  }
  check(tests, memory);
}

void engine_run::compare_ranks() {
  std::vector<std::vector<std::uint64_t>> local_hashes;
  for (const rank_context& context : m_ranks) local_hashes.push_back(context.hashes);
  const auto all = m_runner.exchange(local_hashes);
  if (m_ranks.front().member.rank != 0 || m_is_broken) return;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].size() != all[0].size()) {
      report(static_cast<int>(rank), {},
             fmt::format("ran {} cases, rank 0 ran {}", all[rank].size(), all[0].size()));
      continue;
    }
    for (std::size_t i = 0; i < m_issued.size(); ++i)
      if (all[rank][i] != all[0][i])
        report(static_cast<int>(rank), m_issued[i], "result differs in its bits from that of rank 0");
  }
}

int engine_run::run() {
  const auto start = std::chrono::steady_clock::now();
  open();
  if (m_options.only) {
    run_single(*m_options.only);
  } else {
    plan_options options = m_options.plan;
    if (m_engine.is_algorithm && !options.is_covering) options.sampling_stride *= 4;
    const plan cases = make_plan(options, m_runner.size(), m_engine.boundaries);
    for (const test_case& test : cases.singles) run_single(test);
    for (const auto& tests : cases.back_to_back) run_back_to_back(tests);
    for (const auto& tests : cases.grouped) run_grouped(tests);
  }
  compare_ranks();
  close();
  if (m_issued.empty() && m_runner.size() > 1 && !m_options.only)
    report(m_ranks.front().member.rank, {}, "no case selected this engine");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (m_ranks.front().member.rank == 0)
    fmt::print("{:9} {} ranks {:24} {:5} cases {} failed {:6.2f} s\n", m_runner.topology(), m_runner.size(),
               m_engine.name, m_issued.size(), m_failures, seconds);
  std::fflush(stdout);
  return m_failures;
}

}  // namespace

namespace {
bool is_requested(const std::string& engine, const std::string& requested) {
  return requested.empty() || engine == requested ||
         (requested.ends_with('*') && engine.starts_with(requested.substr(0, requested.size() - 1)));
}
}  // namespace

int run_suite(rank_runner& runner, const suite_options& options) {
  try {
    int failures = 0;
    std::string engine_names, missing_engines;
    bool is_found = options.engine.empty();
    for (const engine_spec& engine : find_engines(runner, options.timeout_s, options.except, missing_engines)) {
      engine_names += (engine_names.empty() ? "" : ", ") + engine.name;
      if (!is_requested(engine.name, options.engine)) continue;
      is_found = true;
      failures += engine_run(runner, options, engine).run();
    }
    if (!is_found)
      throw std::runtime_error(fmt::format("there is no engine {} here; there are: {}{}", options.engine,
                                           engine_names, missing_engines));
    return failures;
  } catch (const std::exception& failure) {
    fmt::print("FAIL {}\n", failure.what());
    return 1;
  }
}

}  // namespace conformance
