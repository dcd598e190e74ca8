// After a failure, the remaining ranks agree on the set of surviving ranks (survivor protocol), in the
// same place for all communicators that result from shrinking one (rendezvous).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/tcp_store.hpp"

namespace isthmus {

// State of a peer that has not joined.
enum class peer_state : std::uint8_t {
  unknown,       // it may still join
  disconnected,  // it will not join, but may continue elsewhere
  exited         // its process has exited, or it destroyed its communicator
};

struct survivor_round {
  std::string scope;  // prefix of the keys; a new one for each attempt
  int rank = 0, size = 1;
  double wait_s = 0;
  std::function<peer_state(int)> peer_state_of;
  // By rank: 0 if this rank knows that it was excluded earlier. Empty: no rank was excluded.
  std::vector<std::uint8_t> members{};
};

// Thrown if the store does not answer: the agreement must continue in another store.
struct store_lost {
  error cause;
};

// Runs one round of the protocol and returns the surviving ranks in ascending order. Collective over the ranks
// that call it with the same scope. Each rank announces itself in the store. The first rank that knows the
// state of all others, or that has waited long enough, proposes a list; the store keeps the first proposal. A
// rank that some participant knows to be excluded stays excluded.
// Errors: throws store_lost, or error: TIMEOUT (no majority; the failed ranks are those whose state is unknown), REMOTE
// (this rank is excluded).
std::vector<int> agree_on_survivors(store& keys, const survivor_round& round);

// Rendezvous of the ranks of a communicator after a failure. The communicator and all communicators that
// result from shrinking it share one object. If another rank fails during a shrink, some ranks may already
// have the new communicator while others still use the old one; a shared object ensures that both wait in
// the same place. All rank numbers refer to the first communicator.
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
