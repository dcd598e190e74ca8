// The mpi backend: collectives through the MPI library of the program, on host buffers and on buffers of CUDA and HIP
// devices. The default for host buffers.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "failure/wait.hpp"

namespace isthmus {

// One rank per process. Available if the communicator was created from MPI.
//
// Blocking: on the host only. On devices, a thread of the backend calls MPI (device_queue.hpp). Devices need
// MPI_THREAD_MULTIPLE and a rule of the configuration that names the backend.
//
// Errors: sends and receives end at the timeout or at an abort. MPI cannot cancel a collective that has
// started. If the communicator is aborted while this rank is inside one (the watchdog aborts at the timeout),
// the backend revokes the MPI communicator if MPI has ULFM. Otherwise it ends the job with MPI_Abort, because
// nothing else releases the ranks.
const isthmus_backend* mpi_backend() noexcept;

namespace mpi {

// The calls of one communicator on the program's MPI: collectives, messages that progress together, and the abort.
//
// Preconditions: the calling thread may call MPI (mpi_thread_guard), and the buffers are memory that MPI accepts.
// Errors: functions throw isthmus::error. Messages end at the timeout or at an abort.
// Thread safety: one thread at a time. abort may be called at any time from any thread.
class mpi_calls {
 public:
  // `comm` is not owned.
  mpi_calls(const isthmus_backend_context& context, isthmus_mpi_comm comm)
      : m_context(context), m_mpi(*context.mpi), m_comm(comm) {}

  // Blocking: runs a collective. MPI cannot cancel a collective that has started.
  void run(const isthmus_operation& operation);
  // Starts a send or recv, which progresses while collectives run. finish blocks until all are complete. On a device,
  // the stream of a peer may execute earlier work of the application for any time, so the timeout only ends a wait for
  // a peer whose process has exited or is stopped.
  void start(const isthmus_operation& operation);
  void finish();
  // Cancels the messages that are not complete. After a failure, nothing may write to their buffers.
  void cancel() noexcept;
  // Releases the ranks that are in an MPI call of this communicator. Revokes the communicator if MPI has ULFM.
  // Otherwise ends the job if this rank stays inside a collective.
  void abort();

 private:
  using clock = wait_clock;

  struct open_request {
    void* request;
    isthmus_collective collective;
    int peer;
  };

  bool can_revoke() const;
  bool wait_until_outside_mpi(std::chrono::seconds limit, poll_pause pause) const;
  void call(const isthmus_operation& operation);
  void check_wait(clock::time_point deadline) const;
  [[noreturn]] void fail(int code, isthmus_collective collective);

  const isthmus_backend_context& m_context;
  const isthmus_mpi_table& m_mpi;
  isthmus_mpi_comm m_comm;
  std::vector<open_request> m_open_requests;
  std::atomic<bool> m_has_failed{false};  // an MPI call failed; other ranks may be stuck in MPI
  std::atomic<bool> m_is_aborted{false};
  std::atomic<bool> m_is_inside_mpi{false};  // a blocking MPI call is in progress; read by abort
};

}  // namespace mpi
}  // namespace isthmus
