#include "bootstrap/peers.hpp"

#include <algorithm>
#include <array>
#include <thread>

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;

const char* remark(process_state state) {
  switch (state) {
    case process_state::alive: return "";
    case process_state::stopped: return " (its process is stopped)";
    case process_state::gone: return " (its process has ended)";
  }
  return "";
}

}  // namespace

process_state rank_process::state() const noexcept {
  return pid == 0 ? process_state::alive : look_at_process(pid, start);
}

bool rank_process::has_destroyed_communicator() const noexcept {
  return notice != nullptr && notice->has_destroyed_communicator.load(std::memory_order_acquire) != 0;
}

std::optional<int> find_in_state(std::span<const rank_process> processes, process_state wanted, int own,
                                 int first) noexcept {
  for (int rank = first; rank < static_cast<int>(processes.size()); ++rank)
    if (rank != own && processes[static_cast<std::size_t>(rank)].state() == wanted) return rank;
  return std::nullopt;
}

bool peers::all_have_notices() const noexcept {
  return std::ranges::all_of(m_processes, [](const auto& each) { return each.notice != nullptr; });
}

bool peers::write(const failure_info& failure) noexcept {
  failure_notice* const notice = of(m_rank).notice;
  if (notice == nullptr) return false;
  std::uint32_t state = failure_notice::empty;
  if (notice->state.compare_exchange_strong(state, failure_notice::unfinished)) {
    notice->failure = failure;
    notice->state.store(failure_notice::written, std::memory_order_release);
  }
  return true;
}

failure_info peers::of_this_rank(const error& failure) const {
  failure_info info = failure.info();
  info.rank = m_rank;
  return info;
}

std::optional<failure_info> peers::read_now() const noexcept {
  std::optional<failure_info> consequence;
  for (const rank_process& each : m_processes) {
    if (each.notice == nullptr || each.notice->state.load(std::memory_order_acquire) != failure_notice::written)
      continue;
    if (!is_consequence(each.notice->failure.status)) return each.notice->failure;
    if (!consequence) consequence = each.notice->failure;
  }
  return consequence;
}

std::optional<failure_info> peers::read(double wait_s) const noexcept {
  const auto deadline = clock::now() + std::chrono::duration<double>(wait_s);
  while (true) {
    auto failure = read_now();
    if (failure || clock::now() >= deadline) return failure;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void peers::mark_aborted() noexcept {
  if (failure_notice* const notice = of(m_rank).notice)
    notice->has_aborted.store(1, std::memory_order_release);
}

std::optional<bool> peers::has_aborted(int rank, double wait_s) const noexcept {
  const failure_notice* const notice = of(rank).notice;
  if (notice == nullptr) return std::nullopt;
  const auto deadline = clock::now() + std::chrono::duration<double>(wait_s);
  while (notice->has_aborted.load(std::memory_order_acquire) == 0) {
    if (clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void peers::throw_if_written() const {
  if (const auto failure = read()) throw failure_elsewhere(*failure);
}

// A rank that leaves says so before it ends, so what is read behind the look is the last word.
std::optional<int> peers::find_lost() const noexcept {
  auto ended = find_ended();
  while (ended && of(*ended).has_destroyed_communicator()) ended = find_ended(*ended + 1);
  return ended;
}

error peers::ended(int rank) const {
  return make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                    fmt::format("rank {} ended, or destroyed its communicator, while rank {} waited for it to "
                                "create, split or allocate",
                                rank, m_rank),
                    "look for a crash or an early exit of that rank")
      .with_failed_ranks(std::array{rank});
}

// Ranks that end after a stop gave up waiting, so the stopped ones count.
std::string peers::describe(const std::vector<int>& missing, bool is_certain) const {
  std::vector<process_state> states;
  for (const rank_process& each : m_processes) states.push_back(each.state());
  const bool any_stopped = std::ranges::find(states, process_state::stopped) != states.end();
  const process_state lost = any_stopped ? process_state::stopped : process_state::gone;
  const bool any_lost = std::ranges::find(states, lost) != states.end();
  std::string text, others;
  for (int rank = 0; rank < static_cast<int>(states.size()); ++rank) {
    const bool is_lost = states[static_cast<std::size_t>(rank)] == lost;
    if (rank == m_rank) continue;
    if (std::ranges::find(missing, rank) != missing.end() && (is_lost || is_certain || !any_lost))
      text += fmt::format("{}{}{}", text.empty() ? "" : ", ", rank, is_lost ? remark(lost) : "");
    else if (is_lost)
      others += fmt::format("{}rank {}{}", text.empty() && others.empty() ? "" : "; others may wait for ", rank,
                            remark(lost));
  }
  return text + others;
}

error failure_elsewhere(const failure_info& failure) {
  // Whom another rank has waited for in vain, this one waits for in vain, too.
  const bool is_late = failure.status == ISTHMUS_ERROR_TIMEOUT;
  return make_error(is_late ? ISTHMUS_ERROR_TIMEOUT : ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                    fmt::format("rank {} failed: {}", failure.rank, failure.message), failure.hint,
                    failure.native_code)
      .with_failed_ranks(failure.failed_ranks());
}

}  // namespace isthmus
