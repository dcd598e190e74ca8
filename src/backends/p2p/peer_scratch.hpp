// The scratch of every rank, mapped into this rank's device: what create sets up and destroy undoes.
#pragma once

#include <isthmus/backend.h>

#include <isthmus/plugin.hpp>
#include <memory>
#include <string>
#include <vector>

#include "backends/p2p/kernels.hpp"

namespace isthmus::p2p {

class peer_scratch {
 public:
  // Collective over the ranks. Throws nothing: where some rank can't, `reason` says why, the same way on
  // every rank (the first rank that can't speaks), and the object is not usable.
  explicit peer_scratch(const isthmus_backend_context& context);
  ~peer_scratch();
  peer_scratch(const peer_scratch&) = delete;
  peer_scratch& operator=(const peer_scratch&) = delete;

  const std::string& reason() const { return m_reason; }
  std::int64_t native_code() const { return m_native_code; }
  // What every call of this rank has: the scratch, the host's words, and how kernels start.
  void fill_arguments(kernel_arguments& args) const;
  host_flags* flags() const { return m_flags; }
  // Leaves this rank's scratch allocated for ever: a rank may still write to it. Returns its bytes.
  std::size_t abandon_scratch();

 private:
  struct scratch_address;
  void prepare(const isthmus_backend_context& context, vote<scratch_address>& own_vote);
  gpu_error fill_scratch();
  void map(const isthmus_backend_context& context, const votes<scratch_address>& all, refusal& own_vote);
  template <typename Value>
  bool agree(const isthmus_backend_context& context, const vote<Value>& own_vote, votes<Value>& all);

  int m_device = -1;
  bool m_may_share_device = false;  // one device with ranks of other processes
  int m_size = 0;
  std::byte* m_own_scratch = nullptr;
  std::vector<std::byte*> m_scratch;  // of rank (own rank + i) % size, as this device reaches it
  std::vector<std::byte*> m_imported;   // mapped from other processes
  host_flags* m_flags = nullptr;
  bool m_can_start_early = false;
  std::string m_reason;
  std::int64_t m_native_code = 0;  // of the rank that speaks
};

}  // namespace isthmus::p2p
