// Barrier at the start of calls, for the ranks of one communicator in this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "bootstrap/membership.hpp"

namespace isthmus {

// Each rank calls wait() in its own thread. Destroying the object leaves the barrier.
class start_barrier {
 public:
  explicit start_barrier(const membership& ranks);

  // Waits until all ranks have called wait() as often as this rank. Calls `poll` from time to time; if it
  // throws, the wait ends.
  // Errors: TIMEOUT with the missing ranks as failed ranks.
  void wait(const char* call, double timeout_s, const std::function<void()>& poll);

 private:
  struct shared_state;
  bool have_all_arrived(std::uint64_t count) const noexcept;

  std::shared_ptr<shared_state> m_state;
  std::size_t m_index = 0;  // of this rank in the state
};

}  // namespace isthmus
