// Device buffers over MPI, without a wait on the caller's thread.
//
// enqueue marks the place in the stream with an event and holds the stream behind it, on the device. One
// thread of the backend waits for the event, copies to pinned memory, calls MPI, copies back and lets the
// stream go. While MPI works on one collective, the next comes in and the last one goes out; large element-wise
// ones are cut into pieces for that. With `device_buffers` MPI gets what it takes as it is.
//
// Which calls MPI gets must not depend on anything that only one rank knows, such as what else is in its
// group, or whether its buffers are in place. Where the memory lies that a call gets is each rank's own choice.
//
// Beside NCCL on one device this cannot deadlock as long as all ranks call in the same order: the held
// stream needs only copy engines and this thread to go on, and neither waits for an SM that a kernel of NCCL
// occupies. Nothing that synchronises a device (allocation, for one) happens after create. With device_buffers
// that is in the hands of MPI: docs/hybrid.md.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/block_map.hpp"
#include "device/runtime.hpp"

namespace isthmus::hybrid {

class staging {
 public:
  staging(const isthmus_backend_context& context, const device_runtime& runtime, isthmus_mpi_comm comm,
          std::uint64_t piece_bytes, bool device_buffers);
  ~staging();

  // Allocates what the thread needs, and starts it.
  isthmus_status start();
  isthmus_status enqueue(const isthmus_operation* operations, std::size_t n);
  isthmus_status poll();
  isthmus_status synchronize();
  void abort();

 private:
  // Operations that were enqueued together, and the arrays that their pointers lead to.
  struct task {
    std::vector<isthmus_operation> operations;
    std::deque<std::vector<std::uint64_t>> arrays;
    void* event = nullptr;
    std::uint32_t sequence = 0;
  };
  struct trouble {
    isthmus_status status = ISTHMUS_SUCCESS;
    std::int64_t native_code = 0;
    std::string message;
  };
  // One call of MPI, on device pointers until it is made.
  struct step {
    isthmus_operation call;
    block_map blocks;
    bool staged;             // through pinned memory
    std::uint64_t in_bytes;  // copied before the call
    std::uint64_t out_bytes() const { return staged ? blocks.recv_bytes() : 0; }
  };
  // Pinned memory where it is large enough, else ordinary memory: never an allocation that synchronises.
  class host_memory {
   public:
    void adopt(void* pinned, std::size_t bytes) {
      m_pinned = static_cast<std::byte*>(pinned), m_capacity = bytes;
    }
    std::byte* get(std::size_t bytes);
    std::byte* pinned() const { return m_pinned; }

   private:
    std::byte* m_pinned = nullptr;
    std::size_t m_capacity = 0;
    std::vector<std::byte> m_ordinary;
  };

  isthmus_status report(const trouble& what) const;
  isthmus_status refuse_stream(void* stream) const;
  void serve();
  trouble run(const task& work);
  bool goes_as_it_is(const isthmus_operation& operation) const;
  step step_of(const isthmus_operation& operation) const;
  void append_calls(const isthmus_operation& operation, std::vector<step>& steps) const;
  trouble run_collectives(const std::vector<step>& steps);
  trouble fetch(const step& what, std::size_t slot);
  trouble call_mpi(const step& what, std::size_t slot);
  trouble bring_back(const step& what, std::size_t slot);
  trouble start_peers(const std::vector<step>& peers, std::vector<void*>& open);
  trouble finish_peers(const std::vector<step>& peers, std::vector<void*>& open);
  trouble mark_and_wait(void* event, void* stream) const;
  trouble wait_for(void* event) const;
  trouble copy(void* to, const void* from, std::size_t bytes, void* stream) const;
  trouble native(int code, const char* what) const;
  trouble device(int error, const char* what) const;
  std::array<host_memory*, 6> all_memory() {
    return {&m_send[0], &m_send[1], &m_recv[0], &m_recv[1], &m_peer_send, &m_peer_recv};
  }
  bool stopped() const { return m_aborted.load() || m_context.is_aborted(m_context.runtime) != 0; }

  const isthmus_backend_context& m_context;
  const device_runtime m_runtime;
  isthmus_mpi_comm m_comm;
  const std::uint64_t m_piece_bytes;
  const bool m_device_buffers;
  const bool m_flush;

  std::uint32_t* m_word = nullptr;  // pinned: sequence numbers up to here may pass
  void* m_in = nullptr;             // streams of the two directions
  void* m_out = nullptr;
  void* m_arrived = nullptr;             // event of the copy in
  void* m_left[2] = {};                  // events of the copies out, by slot
  host_memory m_send[2], m_recv[2];      // of collectives, by slot
  host_memory m_peer_send, m_peer_recv;  // of all point to point of a task

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::deque<task> m_tasks;
  std::vector<void*> m_free_events;
  std::uint32_t m_issued = 0;
  std::uint32_t m_finished = 0;
  bool m_stop = false;
  trouble m_trouble;
  std::atomic<bool> m_aborted{false};
  std::atomic<bool> m_inside_mpi{false};
  std::thread m_thread;
};

}  // namespace isthmus::hybrid
