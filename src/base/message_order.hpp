// Order of the sends and receives of one rank in a group if several backends run them.
//
// A program may rely on the order of NCCL: the k-th send to a peer and the k-th receive from it are pair k, the messages
// of a pair run concurrently, and the pairs of a peer run one after the other. Backends cannot run concurrently, because
// a device need not run kernels of two backends at the same time. Within a pair, the order is therefore:
// buffered sends, which do not wait for their receivers; messages of the other backends; receives of buffered sends.
//
// There is no deadlock if NCCL alone has none and a ring has memory for two messages. docs/internals/p2p.md has the proof.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace isthmus {

struct ordered_message {
  int peer;
  bool is_send;
  const void* backend;  // identifies the backend
  bool is_buffered;     // sends on this backend do not wait for their receivers
};

// Returns the phase of each message. The phases run one after the other. The messages of a phase that run on the same
// backend are one group of that backend. If two ranks have the same groups, both sides of a message have the same phase,
// except that the receive of a buffered send is in a later phase. With more ranks, the phases can differ.
inline std::vector<int> message_phases(std::span<const ordered_message> messages, int rank) {
  std::map<int, std::array<int, 2>> counts;  // by peer: sends, receives
  std::vector<int> pairs;
  int pair_count = 0;
  for (const ordered_message& each : messages) {
    pairs.push_back(counts[each.peer][each.is_send ? 0 : 1]++);
    pair_count = std::max(pair_count, pairs.back() + 1);
  }
  // A message to the own rank waits for no other rank, so it does not count.
  constexpr int none = 0, one = 1, several = 2;
  struct row {
    int backends = none;
    const void* backend = nullptr;
    int first = 0;  // first pair of the consecutive pairs that run on this backend
  };
  std::vector<row> rows(static_cast<std::size_t>(pair_count));
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].peer == rank) continue;
    row& own = rows[static_cast<std::size_t>(pairs[i])];
    if (own.backends == none) own = {one, messages[i].backend};
    if (own.backend != messages[i].backend) own.backends = several;
  }
  for (int pair = 0; pair < pair_count; ++pair) {
    row& own = rows[static_cast<std::size_t>(pair)];
    own.first = pair;
    if (pair == 0) continue;
    const row& before = rows[static_cast<std::size_t>(pair) - 1];
    if (own.backends == none) own = before;
    if (own.backends == one && before.backends == one && own.backend == before.backend)
      own.first = before.first;
  }
  std::vector<int> phases;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ordered_message& message = messages[i];
    const row& own = rows[static_cast<std::size_t>(pairs[i])];
    const bool is_early = message.is_buffered && (message.is_send || message.peer == rank);
    const bool is_late = message.is_buffered && !is_early;
    const int part = own.backends != several ? 1 : is_early ? 0 : is_late ? 2 : 1;
    phases.push_back(3 * own.first + part);
  }
  return phases;
}

}  // namespace isthmus
