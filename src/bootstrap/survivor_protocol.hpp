// Survivor protocol: after a failure the remaining ranks agree on the set of surviving ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"

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
// Errors: throws store_lost, or error: TIMEOUT (no majority), REMOTE (this rank is excluded).
std::vector<int> agree_on_survivors(store& keys, const survivor_round& round);

}  // namespace isthmus
