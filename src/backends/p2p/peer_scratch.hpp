// The scratch memory of all ranks, mapped on this rank's device. create() sets it up and destroy() releases it.
#pragma once

#include <isthmus/backend.h>

#include <algorithm>
#include <isthmus/plugin.hpp>
#include <memory>
#include <string>
#include <vector>

#include "backends/p2p/kernels.hpp"

namespace isthmus::p2p {

class peer_scratch {
 public:
  // Collective over the ranks. Does not throw. If a rank cannot set up its scratch, reason() describes the
  // first such rank, identically on all ranks, and the object is not usable.
  explicit peer_scratch(const isthmus_backend_context& context);
  ~peer_scratch();
  peer_scratch(const peer_scratch&) = delete;
  peer_scratch& operator=(const peer_scratch&) = delete;

  const std::string& reason() const { return m_reason; }
  std::int64_t native_code() const { return m_native_code; }
  // Sets the arguments that all calls of this rank share: scratch, host flags and the launch mode.
  template <typename Arguments>
  void fill_arguments(Arguments& args) const {
    std::copy(m_scratch.begin(), m_scratch.end(), args.scratch);
    args.flags = m_flags;
    args.can_start_early = m_can_start_early;
  }
  // Equal on all ranks.
  lane_limits limits() const { return {max_lanes(m_size), m_packet_bytes}; }
  lane_limits message_limits() const { return p2p::message_limits(m_message_lanes, m_packet_bytes); }
  int multiprocessors() const { return m_multiprocessors; }  // of the smallest device
  bool can_multiply() const { return m_can_multiply; }       // load_product_kernels succeeded on all ranks
  host_flags* flags() const { return m_flags; }
  // Leaks this rank's scratch because a peer may still write to it. Returns its size in bytes.
  std::size_t abandon_scratch();

 private:
  struct scratch_address;
  void prepare(const isthmus_backend_context& context, vote<scratch_address>& own_vote);
  gpu_error fill_scratch();
  std::size_t scratch_bytes() const { return inbox_offset + m_inbox_bytes; }
  void map(const isthmus_backend_context& context, const votes<scratch_address>& all, refusal& own_vote);
  template <typename Value>
  bool agree(const isthmus_backend_context& context, const vote<Value>& own_vote, votes<Value>& all);

  int m_device = -1;
  bool m_may_share_device = false;  // with ranks of other processes
  int m_size = 0;
  std::size_t m_inbox_bytes = 0;  // 0: no inbox
  std::uint64_t m_packet_bytes = 0;
  int m_message_lanes = 0;
  int m_multiprocessors = 0;
  bool m_can_multiply = false;
  std::byte* m_own_scratch = nullptr;
  std::vector<std::byte*> m_scratch;           // [i]: of rank (own rank + i) % size, as mapped on this device
  std::vector<std::byte*> m_imported_scratch;  // mapped from other processes
  host_flags* m_flags = nullptr;
  bool m_can_start_early = false;
  std::string m_reason;
  std::int64_t m_native_code = 0;  // of the rank that m_reason describes
};

}  // namespace isthmus::p2p
