// Launches operations on the kernels that use channels. It needs no runtime function other than the launch, so tests run it
// on simulated devices.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <vector>

#include "backends/p2p/kernels.hpp"

namespace isthmus::p2p {

// The part that the operations of a rank have in common.
struct channel_rank {
  channel_arguments arguments;  // without messages
  lane_limits limits;
};

// Enqueues a collective. `is_two_shot`: in an allreduce, rank r combines slice r and sends the result to all ranks;
// otherwise all ranks combine everything.
gpu_error launch_channel_call(const channel_rank& self, const isthmus_operation& operation, bool is_two_shot,
                              gpu_stream stream);

// The sends and receives of a group. The k-th send to a peer and the k-th receive from it run in round k, as in NCCL.
class message_rounds {
 public:
  explicit message_rounds(const channel_rank& self) : m_self(self) {}

  void add(const isthmus_operation& operation);
  bool is_empty() const { return m_rounds.empty(); }
  // Returns false if a message of this rank to itself has no counterpart of the same length.
  bool are_self_messages_matched() const;
  gpu_error launch(gpu_stream stream) const;

 private:
  const channel_rank& m_self;
  std::array<std::array<std::size_t, max_ranks>, 2> m_counts{};  // [sends, receives][rank]
  std::vector<channel_arguments> m_rounds;
};

}  // namespace isthmus::p2p
