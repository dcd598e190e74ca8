#include "core/failure_board.hpp"

#include "base/log.hpp"
#include "bootstrap/exchange.hpp"

namespace isthmus {
namespace {

void log_missing_board(const membership& ranks, int rank, const error& failure) {
  log(log_level::info,
      "rank {}: no shared memory for the failure notices of rank {}, using the bootstrap instead: {}",
      ranks.rank, rank, failure.what());
}

}  // namespace

void failure_board::share(bootstrap& control, const membership& ranks) {
  if (ranks.process_size == ranks.size) return;  // ranks of one process notify each other directly
  segment_address contribution{};
  try {
    m_own_page = shared_segment::create(sizeof(failure_record));
    contribution = m_own_page->address();
  } catch (const error& failure) {
    log_missing_board(ranks, ranks.rank, failure);
  }
  const auto addresses = gather_values(control, contribution);
  auto processes = ranks.rank_processes;
  m_pages.resize(processes.size());
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    if (processes[rank].pid == 0 || addresses[rank].bytes == 0) continue;
    try {
      m_pages[rank] = shared_segment::open(addresses[rank]);
      processes[rank].record = reinterpret_cast<failure_record*>(m_pages[rank]->data());
    } catch (const error& failure) {
      log_missing_board(ranks, static_cast<int>(rank), failure);
    }
  }
  control.watch_processes(processes);
  m_peers = peer_monitor(ranks.rank, ranks.size);
  m_peers.watch(processes);
}

void failure_board::leave() noexcept {
  if (m_own_page)
    reinterpret_cast<failure_record*>(m_own_page->data())
        ->has_destroyed_communicator.store(1, std::memory_order_release);
}

void failure_board::end_sharing() {
  if (m_own_page) m_own_page->close_descriptor();
}

}  // namespace isthmus
