#include "device/signal_channel.hpp"

#include <algorithm>
#include <chrono>

#include "failure/wait.hpp"

namespace isthmus {
namespace {

constexpr double release_limit_s = 0.02, max_gap_s = 0.005;
constexpr std::chrono::microseconds release_interval{50};

}  // namespace

signal_channel::signal_channel(std::span<void* const> blocks, const layout& flag_layout)
    : m_layout(flag_layout) {
  for (void* block : blocks) m_blocks.push_back(static_cast<std::uint32_t*>(block));
}

std::optional<int> signal_channel::aborted_rank(int owner) const {
  const std::uint32_t word = read(abort_word(owner));
  return word == 0 ? std::nullopt : std::optional(static_cast<int>(word - 1));
}

void signal_channel::notify_abort(int rank) const {
  const int first = aborted_rank(rank).value_or(rank);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank && peer != first) write(abort_word(peer), static_cast<std::uint32_t>(first) + 1);
}

void release_queued_calls(const std::function<std::uint32_t()>& current,
                          const std::function<void(std::uint32_t)>& release) {
  const auto end = deadline_after(release_limit_s);
  for (auto gap_end = deadline_after(max_gap_s); wait_clock::now() < std::min(end, gap_end);
       sleep_briefly(release_interval)) {
    const std::uint32_t number = current();
    if (number == 0) continue;
    release(number);
    gap_end = deadline_after(max_gap_s);
  }
}

bool is_executing(const std::function<std::uint32_t()>& current, std::uint32_t number, double duration_s) {
  for (const auto end = deadline_after(duration_s); wait_clock::now() < end; relax_core())
    if (current() != number) return false;
  return true;
}

}  // namespace isthmus
