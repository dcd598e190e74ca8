// The scratch of every rank, mapped into this rank's device: what create sets up and destroy undoes.
#pragma once

#include <isthmus/backend.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/p2p/kernels.hpp"

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
  gpu_error native_code() const { return m_native_code; }
  // Scratch of rank (own rank + i) % size, as this device reaches it.
  std::byte* scratch(int i) const { return m_scratch[i]; }
  host_flags* flags() const { return m_flags; }

 private:
  struct offer;
  offer make_offer(const isthmus_backend_context& context);
  std::string map(const isthmus_backend_context& context, const std::vector<offer>& offers);

  int m_device = -1;
  int m_size = 0;
  std::byte* m_own = nullptr;
  std::vector<std::byte*> m_scratch;
  std::vector<std::byte*> m_opened;  // mapped from other processes
  host_flags* m_flags = nullptr;
  std::string m_reason;
  gpu_error m_native_code{};
};

}  // namespace isthmus::p2p
