#include "player.hpp"

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
constexpr int most_reports = 10;
constexpr std::uint64_t check_everywhere_below = 4096;  // elements

// One rank of this seat while an engine is tested.
struct player {
  member who;
  void* heap = nullptr;
  std::vector<std::uint64_t> hashes;  // one for each case, for the comparison across ranks
};

// Memory and layout of one rank for one case.
struct prepared {
  std::vector<std::byte> own;
  std::optional<rank_buffers> buffers;
};

class session {
 public:
  session(seat& seat, const player_options& options, engine engine)
      : m_seat(seat), m_options(options), m_engine(std::move(engine)) {}

  int run();

 private:
  using batch = std::vector<test_case>;

  void open();
  void close();
  void play_single(const test_case& test);
  void play_back_to_back(const batch& tests);
  void play_grouped(const batch& tests);
  std::vector<std::vector<prepared>> prepare(const batch& tests);
  void check(const batch& tests, std::vector<std::vector<prepared>>& memory);
  void compare_ranks();
  bool chosen(const test_case& test);
  void report(int rank, const test_case& test, const std::string& problem);
  bool grouped_seat() const { return m_players.size() > 1; }

  seat& m_seat;
  const player_options& m_options;
  engine m_engine;
  std::vector<player> m_players;
  std::vector<test_case> m_played;
  int m_failures = 0;
  bool m_broken = false;  // a call failed: the communicator may be poisoned, so nothing more is issued
};

void session::report(int rank, const test_case& test, const std::string& problem) {
  if (++m_failures > most_reports) return;
  const std::string line = fmt::format(
      "FAIL rank {}: {} | conformance --world {} --ranks {} --engine {} --seed {} --case {}\n", rank, problem,
      m_seat.world(), m_seat.size(), m_engine.name, m_options.plan.seed, to_string(test));
  std::fputs(line.c_str(), stdout);  // one write, so that lines of several ranks do not mix
  std::fflush(stdout);
}

void session::open() {
  const config_file config(m_engine);
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.config_path = config.path();
  options.timeout_s = m_options.timeout_s;
  for (const member& who : m_seat.create(options)) m_players.push_back({who, nullptr, {}});
  // Collective, so the ranks of one seat need a thread each.
  std::atomic<int> failed{0};
  std::vector<std::jthread> threads;
  for (player& player : m_players)
    threads.emplace_back([&] {
      failed += isthmus_memory_allocate_symmetric(player.who.communicator, heap_bytes, &player.heap) !=
                ISTHMUS_SUCCESS;
    });
  threads.clear();  // joins
  if (failed > 0) throw std::runtime_error("the symmetric heap could not be allocated");
}

void session::close() {
  for (const player& player : m_players)
    if (isthmus_memory_free(player.who.communicator, player.heap) != ISTHMUS_SUCCESS ||
        isthmus_communicator_destroy(player.who.communicator) != ISTHMUS_SUCCESS)
      report(player.who.rank, {}, describe_last_error());
}

// memory[i][p]: case i on the p-th rank of this seat.
std::vector<std::vector<prepared>> session::prepare(const batch& tests) {
  std::vector<std::vector<prepared>> memory(tests.size());
  std::size_t heap_used = 0;
  for (std::size_t i = 0; i < tests.size(); ++i) {
    const oracle::shape shape = shape_of(tests[i], m_seat.size());
    const std::size_t bytes = rank_buffers::bytes_needed(tests[i], shape);
    const bool heap = tests[i].heap && heap_used + bytes <= heap_bytes;  // the same on all ranks
    for (const player& player : m_players) {
      prepared& made = memory[i].emplace_back();
      if (!heap) made.own.resize(bytes + 64);
      std::byte* start = heap ? static_cast<std::byte*>(player.heap) + heap_used : made.own.data();
      made.buffers.emplace(tests[i], shape, player.who.rank, std::span(start, bytes));
    }
    if (heap) heap_used += (bytes + 255) / 256 * 256;
  }
  return memory;
}

void session::check(const batch& tests, std::vector<std::vector<prepared>>& memory) {
  for (std::size_t i = 0; i < tests.size(); ++i) {
    m_played.push_back(tests[i]);
    const bool compared = tests[i].collective == ISTHMUS_ALLREDUCE;  // all ranks must hold the same bits
    for (std::size_t p = 0; p < m_players.size(); ++p) {
      player& player = m_players[p];
      const rank_buffers& buffers = *memory[i][p].buffers;
      player.hashes.push_back(compared ? buffers.hash() : 0);
      if (m_broken) continue;
      // Where ranks are compared bit by bit, one of them stands for all.
      const bool values =
          !compared || tests[i].count < check_everywhere_below ||
          static_cast<int>(tests[i].seed % static_cast<std::uint64_t>(m_seat.size())) == player.who.rank;
      if (const auto error = buffers.find_error(true, values, m_engine.steps_in_type))
        report(player.who.rank, tests[i], *error);
    }
  }
}

bool session::chosen(const test_case& test) {
  if (m_engine.is_default) return true;
  const oracle::shape shape = shape_of(test, m_seat.size());
  // Addresses alone: nothing is written there before the call is known to be made.
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(rank_buffers::bytes_needed(test, shape));
  const member& who = m_players.front().who;
  return engine_of(who.communicator,
                   operation_of(test, shape, place(test, shape, who.rank, memory.get()), who.rank), m_engine);
}

void session::play_single(const test_case& test) {
  if (m_broken || !chosen(test)) return;
  auto memory = prepare({test});
  const oracle::shape shape = shape_of(test, m_seat.size());
  const bool plain_pairs = !grouped_seat() && can_be_plain_pairs(shape) && test.seed % 4 < 2;
  isthmus_status status = ISTHMUS_SUCCESS;
  if (grouped_seat()) isthmus_group_start();
  for (std::size_t p = 0; p < m_players.size() && status == ISTHMUS_SUCCESS; ++p)
    status = issue(test, shape, *memory[0][p].buffers, m_players[p].who, plain_pairs);
  if (grouped_seat()) {
    const isthmus_status end = isthmus_group_end();
    if (status == ISTHMUS_SUCCESS) status = end;
  }
  if (status != ISTHMUS_SUCCESS) {
    report(m_players.front().who.rank, test, describe_last_error());
    m_broken = true;
  }
  check({test}, memory);
}

// Back to back: the buffers of a call are overwritten as soon as it returned, and ranks that run ahead find
// others still inside an earlier call.
void session::play_back_to_back(const batch& tests) {
  if (m_broken || grouped_seat()) return;
  auto memory = prepare(tests);
  const member& who = m_players.front().who;
  for (std::size_t i = 0; i < tests.size() && !m_broken; ++i) {
    const oracle::shape shape = shape_of(tests[i], m_seat.size());
    const std::uint64_t skew = oracle::mix(tests[i].seed, 40, static_cast<std::uint64_t>(who.rank));
    if (skew % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds((skew >> 8) % 300));
    rank_buffers& buffers = *memory[i][0].buffers;
    if (issue(tests[i], shape, buffers, who, false) != ISTHMUS_SUCCESS) {
      report(who.rank, tests[i], fmt::format("call {} of a batch: {}", i, describe_last_error()));
      m_broken = true;
    } else if (const auto error = buffers.find_error(true, false, false)) {
      report(who.rank, tests[i], fmt::format("call {} of a batch: {}", i, *error));
    }
    buffers.reuse_send_buffer();
  }
  check(tests, memory);
}

void session::play_grouped(const batch& tests) {
  if (m_broken) return;
  auto memory = prepare(tests);
  isthmus_group_start();
  isthmus_status status = ISTHMUS_SUCCESS;
  for (std::size_t p = 0; p < m_players.size(); ++p)
    for (std::size_t i = 0; i < tests.size() && status == ISTHMUS_SUCCESS; ++i)
      status =
          issue(tests[i], shape_of(tests[i], m_seat.size()), *memory[i][p].buffers, m_players[p].who, false);
  const isthmus_status end = isthmus_group_end();
  if (status != ISTHMUS_SUCCESS || end != ISTHMUS_SUCCESS) {
    report(m_players.front().who.rank, tests.front(),
           fmt::format("a group of {} calls: {}", tests.size(), describe_last_error()));
    m_broken = true;
  }
  check(tests, memory);
}

void session::compare_ranks() {
  std::vector<std::vector<std::uint64_t>> mine;
  for (const player& player : m_players) mine.push_back(player.hashes);
  const auto all = m_seat.exchange(mine);
  if (m_players.front().who.rank != 0 || m_broken) return;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].size() != all[0].size()) {
      report(static_cast<int>(rank), {},
             fmt::format("ran {} cases, rank 0 ran {}", all[rank].size(), all[0].size()));
      continue;
    }
    for (std::size_t i = 0; i < m_played.size(); ++i)
      if (all[rank][i] != all[0][i])
        report(static_cast<int>(rank), m_played[i], "result differs in its bits from rank 0's");
  }
}

int session::run() {
  const auto start = std::chrono::steady_clock::now();
  open();
  if (m_options.only) {
    play_single(*m_options.only);
  } else {
    plan_options options = m_options.plan;
    if (m_engine.is_algorithm && !options.covering) options.thinning *= 4;
    const plan plan = make_plan(options, m_seat.size(), m_engine.boundaries);
    for (const test_case& test : plan.singles) play_single(test);
    for (const auto& tests : plan.back_to_back) play_back_to_back(tests);
    for (const auto& tests : plan.grouped) play_grouped(tests);
  }
  compare_ranks();
  close();
  if (m_played.empty() && m_seat.size() > 1 && !m_options.only)
    report(m_players.front().who.rank, {}, "no case chose this engine");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (m_players.front().who.rank == 0)
    fmt::print("{:9} {} ranks {:24} {:5} cases {} failed {:6.2f} s\n", m_seat.world(), m_seat.size(),
               m_engine.name, m_played.size(), m_failures, seconds);
  std::fflush(stdout);
  return m_failures;
}

}  // namespace

namespace {
bool is_asked_for(const std::string& engine, const std::string& asked) {
  return asked.empty() || engine == asked ||
         (asked.ends_with('*') && engine.starts_with(asked.substr(0, asked.size() - 1)));
}
}  // namespace

int play_all(seat& seat, const player_options& options) {
  try {
    int failures = 0;
    std::string known, missing;
    bool found = options.engine.empty();
    for (const engine& engine : find_engines(seat, options.timeout_s, options.except, missing)) {
      known += (known.empty() ? "" : ", ") + engine.name;
      if (!is_asked_for(engine.name, options.engine)) continue;
      found = true;
      failures += session(seat, options, engine).run();
    }
    if (!found)
      throw std::runtime_error(
          fmt::format("there is no engine {} here; there are: {}{}", options.engine, known, missing));
    return failures;
  } catch (const std::exception& failure) {
    fmt::print("FAIL {}\n", failure.what());
    return 1;
  }
}

}  // namespace conformance
