// Simulated devices. One host thread runs their kernels, thread by thread, in random order: ranks are skewed,
// and stores arrive in any order until their kernel ends. The schedule depends only on the seed.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "backends/p2p/instructions.cuh"
#include "backends/p2p/kernels.hpp"

namespace simulated {

class device;

// The devices of all ranks.
class machine {
 public:
  machine(int size, unsigned seed);
  ~machine();

  int size() const { return static_cast<int>(m_devices.size()); }
  // Kernel arguments of `rank` without messages. Use them with stream(rank).
  isthmus::p2p::channel_arguments arguments_of(int rank) const;
  // Arguments of the kernels that use inboxes, without buffers. timeout_ns 0: the timeout of arguments_of.
  template <typename Arguments>
  Arguments inbox_arguments_of(int rank, std::uint64_t timeout_ns) const {
    const isthmus::p2p::channel_arguments common = arguments_of(rank);
    Arguments result{};
    result.rank = rank;
    result.size = size();
    std::copy_n(common.scratch, size(), result.scratch);
    result.flags = common.flags;
    result.timeout_ns = timeout_ns != 0 ? timeout_ns : common.timeout_ns;
    result.divisor = 1;
    return result;
  }
  void* stream(int rank) const;
  // Prepares the first slots of the inboxes, which float reductions use.
  void clear_inboxes(int slots) const;
  // Sets all counters of a rank, as if that many steps had been completed.
  void set_counters(int rank, std::uint32_t steps) const;
  isthmus::p2p::host_flags& flags(int rank) const;
  bool is_idle(int rank) const;
  // Runs the kernels of these ranks until all of them are idle. Returns false if they are not idle
  // after `steps` steps.
  bool run(const std::vector<int>& ranks, long steps);
  bool run(long steps);

 private:
  std::vector<std::unique_ptr<device>> m_devices;
  std::mt19937 m_random;
};

}  // namespace simulated
