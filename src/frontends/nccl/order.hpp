// The order of one communicator's calls. Those that Isthmus takes share signals and staging, and NCCL's and
// Isthmus' kernels that wait for peers must not get in each other's way, so a call on another stream than the
// one before waits for it on the device, as in isthmus.torch. NCCL keeps its own calls in order itself.
#pragma once

#include <cstdint>

#include "frontends/nccl/nccl_api.hpp"

namespace isthmus::nccl_shim {

enum class carrier { isthmus, nccl };

class stream_order {
 public:
  ~stream_order() { close(); }

  // False where this machine's driver can't be used: without it nothing can be taken.
  bool open(int device);
  void close();

  // Around each call that `who` carries out on `stream`.
  void before(nccl_stream stream, carrier who);
  void after(nccl_stream stream, carrier who);

  // Whether what was called last, outside of graphs, is complete.
  bool is_idle() const;

 private:
  struct mark {
    void* event = nullptr;
    nccl_stream stream = nullptr;
    carrier who = carrier::nccl;
    std::uint64_t capture = 0;
    bool is_set = false;
    bool is_only_on(nccl_stream other) const { return !is_set || stream == other; }
  };

  mark& mark_for(std::uint64_t capture) { return capture == 0 ? m_plain : m_captured; }

  void* m_context = nullptr;
  // Behind the call before: outside of graphs; in the capture that is going on. What one records the other
  // can't wait for: between a graph's launches and other calls the program keeps the order.
  mark m_plain, m_captured;
};

}  // namespace isthmus::nccl_shim
