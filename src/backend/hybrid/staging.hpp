// Device buffers over MPI, without a wait on the caller's thread.
//
// enqueue marks the place in the stream with an event and holds the stream behind it, on the device. One
// thread of the backend waits for the event, copies to pinned memory, calls MPI, copies back and lets the
// stream go. Large element-wise operations are cut into pieces so that the copy of the next one, MPI on this
// one and the copy back of the last one overlap.
//
// Beside NCCL on one device this cannot deadlock as long as all ranks call in the same order: the held
// stream needs only copy engines and this thread to go on, and neither waits for an SM that a kernel of NCCL
// occupies. Nothing that synchronises a device (allocation, for one) happens after create.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "staged_operation.hpp"
#include "staging_runtime.hpp"

namespace isthmus::hybrid {

class staging {
 public:
  staging(const isthmus_backend_context& context, const staging_runtime& runtime, isthmus_mpi_comm comm,
          std::uint64_t piece_bytes);
  ~staging();

  // Allocates what the thread needs, and starts it.
  isthmus_status start();
  isthmus_status enqueue(const isthmus_operation* operations, std::size_t n);
  isthmus_status poll();
  isthmus_status synchronize();
  void abort();
  const char* version() const { return m_context.mpi->library; }

 private:
  // Operations that were enqueued together, and the arrays that their pointers lead to.
  struct task {
    std::vector<isthmus_operation> operations;
    std::deque<std::vector<std::uint64_t>> arrays;
    void* event = nullptr;
    std::uint32_t ticket = 0;
  };
  struct trouble {
    isthmus_status status = ISTHMUS_SUCCESS;
    std::int64_t native_code = 0;
    std::string message;
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
  void serve();
  trouble run(const task& work);
  trouble run_whole(const std::vector<isthmus_operation>& operations);
  trouble run_in_pieces(const isthmus_operation& operation, const staged_shape& shape);
  trouble run_on_host(std::vector<isthmus_operation>& operations);
  trouble collective_on_host(const isthmus_operation& operation);
  trouble wait_for(void* event) const;
  trouble copy(void* to, const void* from, std::size_t bytes, void* stream) const;
  trouble native(int code, const char* what) const;
  trouble device(int error, const char* what) const;
  bool stopped() const { return m_aborted.load() || m_context.aborted(m_context.runtime) != 0; }

  const isthmus_backend_context& m_context;
  const staging_runtime m_runtime;
  isthmus_mpi_comm m_comm;
  const std::uint64_t m_piece_bytes;

  std::uint32_t* m_word = nullptr;  // pinned: tickets up to here may pass
  void* m_in = nullptr;             // streams of the two directions
  void* m_out = nullptr;
  void* m_arrived = nullptr;  // event of the copy in
  void* m_left[2] = {};       // events of the copies out, by slot
  host_memory m_send[2], m_recv[2];

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
