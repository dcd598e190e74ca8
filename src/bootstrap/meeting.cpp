#include "bootstrap/meeting.hpp"

#include <numeric>

#include "base/error.hpp"
#include "base/log.hpp"

namespace isthmus {

meeting::meeting(std::shared_ptr<store> keys, std::vector<int> store_numbers, std::string scope, int rank,
                 std::vector<rank_process> processes, std::unique_ptr<fallback_store> own)
    : m_first(std::move(keys)),
      m_keys(m_first),
      m_store_numbers(std::move(store_numbers)),
      m_scope(std::move(scope)),
      m_rank(rank),
      m_size(static_cast<int>(processes.size())),
      m_processes(std::move(processes)),
      m_own(std::move(own)),
      m_members(m_processes.size(), 1) {}

meeting::agreement meeting::agree(double wait_s) {
  const std::lock_guard lock(m_mutex);
  std::string scope = fmt::format("{}/s{}", m_scope, m_agreements);
  const auto look = [this](int rank) { return look_at(rank); };
  std::vector<int> ranks = agree_on_survivors(*m_keys, {scope, m_rank, m_size, wait_s, look, m_members});
  ++m_agreements;
  std::ranges::fill(m_members, 0);
  for (const int rank : ranks) m_members[static_cast<std::size_t>(rank)] = 1;
  return {std::move(ranks), std::move(scope), m_keys};
}

void meeting::move_on(const error& why, double wait_s) {
  const std::lock_guard lock(m_mutex);
  while (m_next_fallback < m_size) {
    const int host = m_next_fallback++;
    const rank_process& there = process(host);
    if (there.fallback.host[0] == '\0' || there.state() != process_state::alive) continue;
    try {
      // Ranks that come later still have to find it.
      if (host == m_rank && m_own) m_own->serve(2 * wait_s + 1);
      m_keys = m_first->connect_fallback_store(there.fallback, m_rank, m_size, wait_s);
      std::iota(m_store_numbers.begin(), m_store_numbers.end(), 0);
      m_agreements = 0;
      return;
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_ABORTED) throw;
      log(log_level::info, "rank {}: rank {} serves no store: {}", m_rank, host, failure.what());
    }
  }
  isthmus_error_info info = why.info();
  info.status = ISTHMUS_ERROR_REMOTE;
  copy_text(
      info.message, sizeof info.message,
      fmt::format("communicator_shrink: the store that the ranks met through is lost: {}", why.info().message));
  copy_text(info.hint, sizeof info.hint,
            "keep the store in a process that outlives the ranks, or meet anew by a unique id");
  throw error(info);
}

fate meeting::fate_of(int rank) const {
  const std::lock_guard lock(m_mutex);
  return look_at(rank);
}

int meeting::store_number(int rank) const {
  const std::lock_guard lock(m_mutex);
  return m_store_numbers[static_cast<std::size_t>(rank)];
}

fate meeting::look_at(int rank) const {
  const rank_process& there = process(rank);
  if (there.state() == process_state::gone) return fate::ended;
  if (!m_keys->is_disconnected(m_store_numbers[static_cast<std::size_t>(rank)])) return fate::unknown;
  // On one machine it has closed its connection; from another one, the way between may be cut.
  return there.pid != 0 ? fate::ended : fate::left;
}

}  // namespace isthmus
