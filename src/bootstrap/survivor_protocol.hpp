// How the ranks that are left after a failure agree on who they are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"

namespace isthmus {

// What is known of a rank that has not come.
enum class peer_state : std::uint8_t {
  unknown,  // it may come yet
  disconnected,     // it does not come; whether it goes on elsewhere, nobody knows
  exited     // its process has exited, or its communicator was destroyed
};

struct survivor_round {
  std::string scope;  // of the keys; another one for each attempt
  int rank = 0, size = 1;
  double wait_s = 0;
  std::function<peer_state(int)> peer_state_of;
  // By rank: 0 if it was left out before, as far as this rank knows; empty: none was.
  std::vector<std::uint8_t> members{};
};

// The store does not answer: the agreement has to go on elsewhere.
struct store_lost {
  error cause;
};

// Collective over whoever calls it with the same scope: each says that it is here, and whoever first knows that
// all others have come or will not, or has waited long enough, proposes the list; the store keeps the first
// proposal. A rank that one of those who came knows to be left out stays out. Returns the ranks that go on,
// ascending. Throws store_lost, or error: TIMEOUT, REMOTE (left out).
std::vector<int> agree_on_survivors(store& keys, const survivor_round& round);

}  // namespace isthmus
