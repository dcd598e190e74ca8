// Where ranks meet after a failure, time and again: those of a communicator and of all that come of it by
// shrinks. One and the same for all of these, since yet another loss may let some ranks have their new
// communicator while others, which could not make it, are still at the one before: they must not wait for
// each other in two places.
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

// Numbers of ranks are those in the first communicator.
class rendezvous {
 public:
  // Of a communicator whose keys begin with `scope`; by rank: the number under which it joined the store, and
  // its process. `own`: on which this rank can serve another store; may be nullptr.
  rendezvous(std::shared_ptr<store> keys, std::vector<int> store_numbers, std::string scope, int rank,
          std::vector<rank_process> processes, std::unique_ptr<fallback_store> own);

  struct agreement {
    std::vector<int> ranks;  // that go on, ascending
    std::string scope;       // of their keys
    std::shared_ptr<store> keys;
  };
  // Collective over whoever still comes. Throws as agree_on_survivors does; after store_lost go on with
  // `switch_store`.
  agreement agree(double wait_s);
  // To the store of the lowest rank that serves one. Every rank asks in the same order. `why`: this one is
  // lost.
  void switch_store(const error& cause, double wait_s);

  // Throws error where the store is lost.
  peer_state peer_state_of(int rank) const;
  int store_number(int rank) const;
  const rank_process& process(int rank) const { return m_processes[static_cast<std::size_t>(rank)]; }
  fallback_address address() const { return m_own_fallback ? m_own_fallback->address() : fallback_address{}; }

 private:
  peer_state probe_peer(int rank) const;

  // A caller may shrink a communicator and one that came of it at once, on two threads.
  mutable std::mutex m_mutex;
  const std::shared_ptr<store> m_first_store;  // knows the secret of all that take its place
  std::shared_ptr<store> m_store;
  std::vector<int> m_store_numbers;  // by rank
  const std::string m_scope;
  const int m_rank, m_size;
  const std::vector<rank_process> m_processes;
  std::unique_ptr<fallback_store> m_own_fallback;
  std::vector<std::uint8_t> m_members;  // by rank: whether the last agreement has it
  int m_agreements = 0;                 // in this store
  int m_next_fallback = 0;
};

}  // namespace isthmus
