// A queue of MPI operations on device buffers, which one thread executes without blocking the caller.
//
// enqueue() records an event in the stream and makes the stream wait on the device for a word in pinned memory. The
// thread waits for the event, calls MPI through the staging pipeline and writes the word. If device buffers are
// enabled, MPI gets them directly whenever possible.
//
// Blocking: on the same device as NCCL this cannot deadlock if all ranks call in the same order. The waiting stream
//   needs only copy engines and this thread, and neither waits for an SM that an NCCL kernel occupies. After
//   creation, nothing synchronizes the device (an allocation would). With device buffers, MPI must guarantee this:
//   see docs/internals/mpi.md.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "backends/mpi/mpi_calls.hpp"
#include "base/error.hpp"
#include "device/staging_pipeline.hpp"

namespace isthmus::mpi {

// A word in pinned memory that streams wait for. Released words are reused by later queues and keep their value,
// because a stream may still have to read it. Freeing a word would wait for all streams of the device.
class release_word {
 public:
  explicit release_word(device_driver& driver);
  ~release_word();
  release_word(const release_word&) = delete;
  release_word& operator=(const release_word&) = delete;

  const std::uint32_t* address() const { return m_word; }
  std::uint32_t value() const { return *m_word; }
  void set(std::uint32_t value) {
    std::atomic_ref<std::uint32_t>(*m_word).store(value, std::memory_order_release);
  }

 private:
  device_driver& m_driver;
  std::uint32_t* m_word;
};

// The buffers that MPI gets. where_possible: copies on streams on which device buffers could deadlock. always: such
// streams are an error.
enum class device_buffers : std::uint8_t { never, where_possible, always };

// Errors: functions throw isthmus::error.
// Thread safety: as isthmus_backend.
class device_queue final : private staging_transport {
 public:
  // `comm` is not owned.
  device_queue(const isthmus_backend_context& context, device_driver& driver, isthmus_mpi_comm comm,
               std::uint64_t chunk_bytes, device_buffers buffers);
  ~device_queue() override;

  void enqueue(const isthmus_operation* operations, std::size_t n);
  // Throws the first failure of the thread.
  void check();
  void synchronize();
  void abort();

 private:
  // The operations of one enqueue, and copies of the arrays that they point to.
  struct task {
    std::vector<isthmus_operation> operations;
    std::deque<std::vector<std::uint64_t>> arrays;
    owned_event event;
    std::uint32_t sequence = 0;
    bool is_staged = false;
  };

  void run(const isthmus_operation& step) override { m_calls.run(step); }
  void start_messages(std::span<const isthmus_operation> messages) override;
  void finish_messages() override { m_calls.finish(); }
  bool accepts_device_buffers(const isthmus_operation& operation) const override;
  bool needs_staging(const isthmus_operation& operation, const block_map& blocks) const override;

  task make_task(const isthmus_operation* operations, std::size_t n) const;
  // Returns true if calls on this stream must be staged.
  bool check_stream(native_stream stream);
  void make_stream_wait(native_stream stream, std::uint32_t sequence);
  void check_failure() const;
  void run_thread();
  void execute(const task& work);
  std::optional<error> try_execute(const task& work);
  bool is_aborted() const { return m_context.is_aborted(m_context.runtime) != 0; }

  const isthmus_backend_context& m_context;
  device_driver& m_driver;
  mpi_calls m_calls;
  const device_buffers m_buffers;
  const bool m_needs_flush;
  staging_pipeline m_pipeline;
  bool m_stages_task = false;  // used by the thread only
  owned_event m_join_event;
  release_word m_word;  // the streams may pass all sequence numbers up to its value

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::deque<task> m_tasks;
  std::vector<owned_event> m_free_events;
  std::uint32_t m_issued_sequence, m_finished_sequence;
  bool m_is_stopping = false;
  std::optional<error> m_failure;
  std::thread m_thread;
};

}  // namespace isthmus::mpi
