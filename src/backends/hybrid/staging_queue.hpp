// A queue of MPI operations on device buffers, which one thread executes without blocking the caller.
//
// enqueue() records an event in the stream and makes the stream wait on the device. The thread waits for
// the event, copies the data to pinned memory, calls MPI, copies the result back and releases the stream.
// While MPI executes one step, the next is copied in and the previous one is copied out. Large
// element-wise collectives are split into chunks for this overlap. If device buffers are enabled, MPI gets
// them directly whenever possible.
//
// Ordering: The sequence of MPI calls must not depend on anything that only one rank knows, such as the other
//   operations of its group or whether its buffers are in place. Each rank may choose independently which
//   memory it passes to a call.
//
// Blocking: On the same device as NCCL this cannot deadlock if all ranks call in the same order. The
//   waiting stream needs only copy engines and this thread, and neither waits for an SM that an NCCL
//   kernel occupies. After create, nothing synchronizes the device (an allocation would). With device
//   buffers, MPI must guarantee
//   this: see docs/internals/nccl.md.
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

class staging_queue {
 public:
  staging_queue(const isthmus_backend_context& context, const device_runtime& runtime, isthmus_mpi_comm comm,
                std::uint64_t chunk_bytes, bool uses_device_buffers);
  ~staging_queue();

  // Allocates all resources and starts the thread.
  isthmus_status start();
  isthmus_status enqueue(const isthmus_operation* operations, std::size_t n);
  isthmus_status poll();
  isthmus_status synchronize();
  void abort();

 private:
  // The operations of one enqueue, and copies of the arrays that they point to.
  struct task {
    std::vector<isthmus_operation> operations;
    std::deque<std::vector<std::uint64_t>> arrays;
    void* event = nullptr;
    std::uint32_t sequence = 0;
  };
  struct task_failure {
    isthmus_status status = ISTHMUS_SUCCESS;
    std::int64_t native_code = 0;
    std::string message;
  };
  // One MPI call. The operation holds device pointers.
  struct mpi_step {
    isthmus_operation operation;
    block_map blocks;
    bool is_staged;          // through pinned memory
    std::uint64_t in_bytes;  // copied to the host before the call
    std::uint64_t out_bytes() const { return is_staged ? blocks.recv_bytes() : 0; }
  };
  // Pinned memory if it is large enough, otherwise pageable memory: allocating pinned memory would
  // synchronize the device.
  class host_buffer {
   public:
    void set_pinned(void* pinned, std::size_t bytes) {
      m_pinned = static_cast<std::byte*>(pinned), m_capacity = bytes;
    }
    std::byte* get(std::size_t bytes);
    std::byte* pinned() const { return m_pinned; }

   private:
    std::byte* m_pinned = nullptr;
    std::size_t m_capacity = 0;
    std::vector<std::byte> m_ordinary;
  };

  isthmus_status report(const task_failure& failure) const;
  isthmus_status check_stream(void* stream) const;
  void run_thread();
  task_failure run(const task& work);
  bool passes_device_buffers(const isthmus_operation& operation) const;
  mpi_step make_step(const isthmus_operation& operation) const;
  void append_steps(const isthmus_operation& operation, std::vector<mpi_step>& steps) const;
  task_failure run_collectives(const std::vector<mpi_step>& steps);
  task_failure copy_in(const mpi_step& step, std::size_t slot);
  task_failure call_mpi(const mpi_step& step, std::size_t slot);
  task_failure copy_out(const mpi_step& step, std::size_t slot);
  task_failure start_messages(const std::vector<mpi_step>& messages, std::vector<void*>& open_requests);
  task_failure finish_messages(const std::vector<mpi_step>& messages, std::vector<void*>& open_requests);
  task_failure record_and_wait(void* event, void* stream) const;
  task_failure wait_for(void* event) const;
  task_failure copy(void* destination, const void* source, std::size_t bytes, void* stream) const;
  task_failure check_mpi(int code, const char* call) const;
  task_failure check_device(int error, const char* call) const;
  std::array<host_buffer*, 6> all_buffers() {
    return {&m_send[0], &m_send[1], &m_recv[0], &m_recv[1], &m_message_send, &m_message_recv};
  }
  bool is_stopped() const { return m_is_aborted.load() || m_context.is_aborted(m_context.runtime) != 0; }

  const isthmus_backend_context& m_context;
  const device_runtime m_runtime;
  isthmus_mpi_comm m_comm;
  const std::uint64_t m_chunk_bytes;
  const bool m_uses_device_buffers;
  const bool m_needs_flush;

  std::uint32_t* m_release_word = nullptr;  // pinned; the stream may pass all sequence numbers up to this value
  void* m_in_stream = nullptr;              // copy streams: device to host and host to device
  void* m_out_stream = nullptr;
  void* m_copy_in_event = nullptr;             // event of the copy to the host
  void* m_copy_out_events[2] = {};             // events of the copies to the device, by slot
  host_buffer m_send[2], m_recv[2];            // of collectives, by slot
  host_buffer m_message_send, m_message_recv;  // of all point-to-point operations of a task

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::deque<task> m_tasks;
  std::vector<void*> m_free_events;
  std::uint32_t m_issued_sequence = 0;
  std::uint32_t m_finished_sequence = 0;
  bool m_is_stopping = false;
  task_failure m_first_failure;
  std::atomic<bool> m_is_aborted{false};
  std::atomic<bool> m_is_inside_mpi{false};
  std::thread m_thread;
};

}  // namespace isthmus::hybrid
