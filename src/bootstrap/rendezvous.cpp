#include "bootstrap/rendezvous.hpp"

#include <numeric>

#include "base/error.hpp"
#include "base/log.hpp"

namespace isthmus {

rendezvous::rendezvous(std::shared_ptr<store> keys, std::vector<int> store_numbers, std::string scope, int rank,
                       std::vector<rank_process> processes, std::unique_ptr<fallback_store> own_fallback)
    : m_first_store(std::move(keys)),
      m_store(m_first_store),
      m_store_numbers(std::move(store_numbers)),
      m_scope(std::move(scope)),
      m_rank(rank),
      m_size(static_cast<int>(processes.size())),
      m_processes(std::move(processes)),
      m_own_fallback(std::move(own_fallback)),
      m_members(m_processes.size(), 1) {}

rendezvous::agreement rendezvous::agree(double wait_s) {
  const std::lock_guard lock(m_mutex);
  std::string scope = fmt::format("{}/s{}", m_scope, m_agreements);
  const auto probe = [this](int rank) { return probe_peer(rank); };
  std::vector<int> ranks = agree_on_survivors(*m_store, {scope, m_rank, m_size, wait_s, probe, m_members});
  ++m_agreements;
  std::ranges::fill(m_members, 0);
  for (const int rank : ranks) m_members[static_cast<std::size_t>(rank)] = 1;
  return {std::move(ranks), std::move(scope), m_store};
}

void rendezvous::switch_store(const error& cause, double wait_s) {
  const std::lock_guard lock(m_mutex);
  while (m_next_fallback < m_size) {
    const int server_rank = m_next_fallback++;
    const rank_process& peer_process = process(server_rank);
    if (peer_process.fallback.host[0] == '\0' || peer_process.state() != process_state::alive) continue;
    try {
      // Serve the store long enough for ranks that arrive later.
      if (server_rank == m_rank && m_own_fallback) m_own_fallback->serve(2 * wait_s + 1);
      m_store = m_first_store->connect_fallback_store(peer_process.fallback, m_rank, m_size, wait_s);
      std::iota(m_store_numbers.begin(), m_store_numbers.end(), 0);
      m_agreements = 0;
      return;
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_ABORTED) throw;
      log(log_level::info, "rank {}: no fallback store on rank {}: {}", m_rank, server_rank, failure.what());
    }
  }
  isthmus_error_info info = cause.info();
  info.status = ISTHMUS_ERROR_REMOTE;
  copy_text(info.message, sizeof info.message,
            fmt::format("communicator_shrink: the store of the ranks is lost: {}", cause.info().message));
  copy_text(
      info.hint, sizeof info.hint,
      "run the store in a process that outlives the ranks, or create a new communicator from a unique id");
  throw error(info);
}

peer_state rendezvous::peer_state_of(int rank) const {
  const std::lock_guard lock(m_mutex);
  return probe_peer(rank);
}

int rendezvous::store_number(int rank) const {
  const std::lock_guard lock(m_mutex);
  return m_store_numbers[static_cast<std::size_t>(rank)];
}

peer_state rendezvous::probe_peer(int rank) const {
  const rank_process& peer_process = process(rank);
  if (peer_process.state() == process_state::exited) return peer_state::exited;
  if (!m_store->is_disconnected(m_store_numbers[static_cast<std::size_t>(rank)])) return peer_state::unknown;
  // A rank of this machine has closed its connection. For a rank of another machine, the network may
  // be down instead.
  return peer_process.pid != 0 ? peer_state::exited : peer_state::disconnected;
}

}  // namespace isthmus
