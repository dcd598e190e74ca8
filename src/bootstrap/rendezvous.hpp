// Rendezvous of the ranks of a communicator after a failure. The communicator and all communicators that
// result from shrinking it share one object. If another rank fails during a shrink, some ranks may already
// have the new communicator while others still use the old one; a shared object ensures that both wait in
// the same place.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/fallback_store.hpp"
#include "bootstrap/survivor_protocol.hpp"

namespace isthmus {

// All rank numbers refer to the first communicator.
class rendezvous {
 public:
  // `scope`: prefix of the communicator's keys. `store_numbers` and `processes` are indexed by rank;
  // `store_numbers` are the numbers with which the ranks joined the store. `own_fallback`: the fallback store
  // that this rank can serve; may be nullptr.
  rendezvous(std::shared_ptr<store> keys, std::vector<int> store_numbers, std::string scope, int rank,
             std::vector<rank_process> processes, std::unique_ptr<fallback_store> own_fallback);

  struct agreement {
    std::vector<int> ranks;  // surviving ranks, ascending
    std::string scope;       // prefix of their keys
    std::shared_ptr<store> keys;
  };
  // Collective over the surviving ranks. Throws the errors of agree_on_survivors. After store_lost, call
  // switch_store and try again.
  agreement agree(double wait_s);
  // Switches to the fallback store of the lowest rank that serves one. All ranks try the candidates in the same
  // order. `cause`: the error that revealed the loss of the current store.
  void switch_store(const error& cause, double wait_s);

  // Throws an error if the store is lost.
  peer_state peer_state_of(int rank) const;
  int store_number(int rank) const;
  const rank_process& process(int rank) const { return m_processes[static_cast<std::size_t>(rank)]; }
  fallback_address address() const { return m_own_fallback ? m_own_fallback->address() : fallback_address{}; }

 private:
  peer_state probe_peer(int rank) const;

  // One thread may shrink a communicator while another thread shrinks a communicator that resulted from it.
  mutable std::mutex m_mutex;
  const std::shared_ptr<store> m_first_store;  // derives the secret of all fallback stores
  std::shared_ptr<store> m_store;
  std::vector<int> m_store_numbers;  // by rank
  const std::string m_scope;
  const int m_rank, m_size;
  const std::vector<rank_process> m_processes;
  std::unique_ptr<fallback_store> m_own_fallback;
  std::vector<std::uint8_t> m_members;  // by rank: 1 if it is in the last agreement
  int m_agreements = 0;                 // in this store
  int m_next_fallback = 0;
};

}  // namespace isthmus
