// The order of one communicator's calls. Those that Isthmus takes share signals and staging, and NCCL's and
// Isthmus' kernels that wait for peers must not get in each other's way, so a call on another stream than the
// one before waits for it on the device, as in isthmus.torch. NCCL keeps its own calls in order itself.
//
// An event behind each of NCCL's calls would cost the host and the device more than the rest of the library,
// and most communicators stay on one stream for long. So behind calls_before_trust calls on one stream none is
// recorded any more; the next time that a call of Isthmus' comes on another stream NCCL's own order serves
// (wait_for_nccl_calls). Behind Isthmus' calls, and in captures, where an event is an edge and costs nothing, one
// always is.
#pragma once

#include <cstdint>

#include "frontends/nccl/nccl_api.hpp"

namespace isthmus::nccl_shim {

enum class call_owner { isthmus, nccl };

class stream_order {
 public:
  ~stream_order() { close(); }

  // False where this machine's driver can't be used: without it nothing can be taken.
  bool open(nccl_comm comm, int rank, int device);
  void close();

  // Around each call that `who` carries out on `stream`; `after` not where it was refused, since such a call is
  // behind nothing. NCCL's code: it may have to launch something.
  int begin_call(nccl_stream stream, call_owner owner);
  void end_call(nccl_stream stream, call_owner owner);

  // Whether what Isthmus was given last, outside of graphs, is complete.
  bool is_idle() const;

 private:
  struct previous_call {
    void* event = nullptr;
    nccl_stream stream = nullptr;
    call_owner owner = call_owner::nccl;
    std::uint64_t capture = 0;
    bool is_set = false, is_recorded = false;
    bool is_unset_or_on(nccl_stream other) const { return !is_set || stream == other; }
  };

  previous_call& previous_call_of(std::uint64_t capture) { return capture == 0 ? m_previous_call : m_previous_captured_call; }

  void record(previous_call& last, nccl_stream stream);
  int wait_for_nccl_calls(previous_call& last, nccl_stream stream);
  bool make_stream_wait(const previous_call& last, nccl_stream stream) const;

  // As many as a message of the rank to itself costs more than an event.
  static constexpr int calls_before_trust = 16;

  nccl_comm m_comm = nullptr;
  int m_rank = -1;
  void *m_context = nullptr, *m_self_message = nullptr;
  int m_calls_on_stream = 0;  // outside of graphs, without another stream's between
  // Behind the call before: outside of graphs; in the capture that is going on. What one records the other
  // can't wait for: between a graph's launches and other calls the program keeps the order.
  previous_call m_previous_call, m_previous_captured_call;
};

}  // namespace isthmus::nccl_shim
