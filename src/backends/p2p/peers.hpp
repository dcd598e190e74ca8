// The scratch of every rank, mapped into this rank's device: what create sets up and destroy undoes.
#pragma once

#include <isthmus/backend.h>

#include <isthmus/plugin.hpp>
#include <memory>
#include <string>
#include <vector>

#include "backends/p2p/kernels.hpp"

namespace isthmus::p2p {

class peers {
 public:
  // Collective over the ranks. Throws nothing: where some rank can't, `reason` says why, the same way on
  // every rank (the first rank that can't speaks), and the object is not usable.
  explicit peers(const isthmus_backend_context& context);
  ~peers();
  peers(const peers&) = delete;
  peers& operator=(const peers&) = delete;

  const std::string& reason() const { return m_reason; }
  std::int64_t native_code() const { return m_native_code; }
  // What every call of this rank has: the scratch, the host's words, and how kernels start.
  void fill_arguments(kernel_arguments& args) const;
  host_flags* flags() const { return m_flags; }
  // Leaves this rank's scratch allocated for ever: a rank may still write to it. Returns its bytes.
  std::size_t keep_scratch();

 private:
  struct address;
  void prepare(const isthmus_backend_context& context, vote<address>& mine);
  gpu_error fill_scratch();
  void map(const isthmus_backend_context& context, const votes<address>& all, refusal& mine);
  template <typename Value>
  bool all_can(const isthmus_backend_context& context, const vote<Value>& mine, votes<Value>& all);

  int m_device = -1;
  bool m_may_share = false;  // one device with ranks of other processes
  int m_size = 0;
  std::byte* m_own = nullptr;
  std::vector<std::byte*> m_scratch;  // of rank (own rank + i) % size, as this device reaches it
  std::vector<std::byte*> m_opened;   // mapped from other processes
  host_flags* m_flags = nullptr;
  bool m_can_start_early = false;
  std::string m_reason;
  std::int64_t m_native_code = 0;  // of the rank that speaks
};

}  // namespace isthmus::p2p
