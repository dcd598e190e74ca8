// Keeps the calls of one communicator in order across streams.
//
// Isthmus calls share signals and staging memory, and NCCL and Isthmus kernels that wait for peers must not run
// concurrently. Therefore a call on a different stream than the previous call waits for that call on the
// device, as in isthmus.torch. NCCL orders its own calls itself.
//
// Recording an event after each NCCL call would cost more, on host and device, than the rest of this library,
// and most communicators use the same stream for a long time. After calls_before_trust calls on one stream, no
// more events are recorded. When an Isthmus call then uses another stream, NCCL's own order replaces the event
// (wait_for_nccl_calls). An event is always recorded after Isthmus calls and in captures, where it is only a
// graph edge and costs nothing.
#pragma once

#include <cstdint>

#include "frontends/nccl/native.hpp"

namespace isthmus::nccl_shim {

enum class call_owner { isthmus, nccl };

class stream_order {
 public:
  ~stream_order() { close(); }

  // Returns false if the CUDA driver cannot be used. Isthmus then handles no calls.
  bool open(native_comm comm, int rank, int device);
  void close();

  // Must enclose each call that `owner` executes on `stream`. Skip end_call if the call was refused, because
  // such a call was not ordered after anything. begin_call may launch work, so it returns an NCCL result code.
  int begin_call(native_stream stream, call_owner owner);
  void end_call(native_stream stream, call_owner owner);

  // True if the last Isthmus call outside of graphs has completed.
  bool is_idle() const;

 private:
  struct previous_call {
    void* event = nullptr;
    native_stream stream = nullptr;
    call_owner owner = call_owner::nccl;
    std::uint64_t capture = 0;
    bool is_set = false, is_recorded = false;
    bool is_unset_or_on(native_stream other) const { return !is_set || stream == other; }
  };

  previous_call& previous_call_of(std::uint64_t capture) {
    return capture == 0 ? m_previous_call : m_previous_captured_call;
  }

  void record(previous_call& last, native_stream stream);
  int wait_for_nccl_calls(previous_call& last, native_stream stream);
  bool make_stream_wait(const previous_call& last, native_stream stream) const;

  // One message of a rank to itself costs about as much as this many events.
  static constexpr int calls_before_trust = 16;

  native_comm m_comm = nullptr;
  int m_rank = -1, m_device = -1;
  void* m_self_message = nullptr;
  int m_calls_on_stream = 0;  // outside of graphs; consecutive calls on one stream
  // The previous call outside of graphs, and the previous call in the current capture. Neither can wait for an
  // event of the other: the program orders graph launches and other calls.
  previous_call m_previous_call, m_previous_captured_call;
};

}  // namespace isthmus::nccl_shim
