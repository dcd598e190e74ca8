#include "core/start_barrier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "base/error.hpp"
#include "failure/wait.hpp"
#include "recorder/diagnosis.hpp"

namespace isthmus {

struct start_barrier::shared_state {
  struct alignas(64) arrival {
    int rank;
    std::atomic<std::uint64_t> count{0};
  };
  shared_state(const std::array<std::uint64_t, 2>& id, const std::vector<int>& ranks)
      : token(id), arrivals(ranks.size()) {
    for (std::size_t i = 0; i < ranks.size(); ++i) arrivals[i].rank = ranks[i];
  }
  const std::array<std::uint64_t, 2> token;
  std::vector<arrival> arrivals;
};

start_barrier::start_barrier(const membership& ranks) {
  const auto process_of = [&](int rank) { return ranks.process_of[static_cast<std::size_t>(rank)]; };
  std::vector<int> local_ranks;
  for (int rank = 0; rank < ranks.size; ++rank) {
    if (rank == ranks.rank) m_index = local_ranks.size();
    if (process_of(rank) == process_of(ranks.rank)) local_ranks.push_back(rank);
  }
  static auto& mutex = *new std::mutex;
  static auto& barriers = *new std::vector<std::weak_ptr<shared_state>>;
  const std::lock_guard lock(mutex);
  std::erase_if(barriers, [](const auto& each) { return each.expired(); });
  for (const auto& each : barriers)
    if (auto state = each.lock(); state && state->token == ranks.token) m_state = std::move(state);
  if (!m_state) {
    m_state = std::make_shared<shared_state>(ranks.token, local_ranks);
    barriers.push_back(m_state);
  }
}

bool start_barrier::have_all_arrived(std::uint64_t count) const noexcept {
  return std::ranges::all_of(m_state->arrivals, [count](const auto& each) {
    return each.count.load(std::memory_order_acquire) >= count;
  });
}

void start_barrier::wait(const char* call, double timeout_s, const std::function<void()>& poll) {
  constexpr std::uint64_t spin_limit = 2000;
  const std::uint64_t count = 1 + m_state->arrivals[m_index].count.fetch_add(1, std::memory_order_acq_rel);
  for (backoff wait(spin_limit); !have_all_arrived(count);) {
    if (wait.spin()) {
      relax_core();
      continue;
    }
    poll();
    if (wait.measure() > std::chrono::duration<double>(timeout_s)) {
      std::vector<int> missing_ranks;
      for (const auto& each : m_state->arrivals)
        if (each.count.load(std::memory_order_acquire) < count) missing_ranks.push_back(each.rank);
      if (missing_ranks.empty()) return;
      throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                       fmt::format("{}: {} of this process did not make the call within {} s", call,
                                   recorder::list_of(missing_ranks), timeout_s),
                       "issue the calls of each rank in its own thread, or those of all ranks in one group")
          .with_failed_ranks(missing_ranks);
    }
    wait.pause();
  }
}

}  // namespace isthmus
