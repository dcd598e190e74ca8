#include "backends/mpi/mpi_calls.hpp"

#include <isthmus/isthmus.h>

#include <array>

#include "base/elements.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"
#include "device/stream_gate.hpp"

namespace isthmus::mpi {
namespace {

constexpr std::uint64_t rounds_between_checks = 256;

// Returns true if no rank has data in this operation.
bool is_empty(const isthmus_operation& operation) {
  return operation.count == 0 && has_equal_count(row_of(operation.collective));
}

}  // namespace

void mpi_calls::run(const isthmus_operation& requested) {
  if (is_empty(requested)) return;
  const collective_row& row = row_of(requested.collective);
  if (!row.is_reduction || requested.op != ISTHMUS_AVG) return call(requested);
  isthmus_operation sum = requested;
  sum.op = ISTHMUS_SUM;
  call(sum);
  if (uses_buffer(row.recv_ranks, requested.root == m_context.rank))
    divide(requested.recv_buf, requested.count, requested.datatype, m_context.size);
}

// Either abort() sees that this rank is inside MPI, or this rank sees the abort and does not enter a collective that
// its peers never join.
void mpi_calls::call(const isthmus_operation& operation) {
  m_is_inside_mpi.store(true, std::memory_order_seq_cst);
  if (m_is_aborted.load(std::memory_order_seq_cst)) {
    m_is_inside_mpi.store(false, std::memory_order_release);
    throw aborted_error(ISTHMUS_HERE);
  }
  const int code = m_mpi.collective(m_comm, &operation);
  m_is_inside_mpi.store(false, std::memory_order_release);
  if (code != 0) fail(code, operation.collective);
}

void mpi_calls::start(const isthmus_operation& operation) {
  if (is_empty(operation)) return;
  void* request = nullptr;
  const int code = m_mpi.start(m_comm, &operation, &request);
  if (code != 0) fail(code, operation.collective);
  m_open_requests.push_back({request, operation.collective, operation.root});
}

void mpi_calls::finish() {
  clock::time_point deadline{};
  for (std::uint64_t rounds = 1; !m_open_requests.empty(); ++rounds) {
    for (std::size_t i = 0; i < m_open_requests.size();) {
      int done = 0;
      const int code = m_mpi.test(&m_open_requests[i].request, &done);
      if (code != 0) fail(code, m_open_requests[i].collective);
      if (done == 0) {
        ++i;
      } else {
        m_open_requests[i] = m_open_requests.back();
        m_open_requests.pop_back();
      }
    }
    if (rounds % rounds_between_checks != 0) continue;
    if (deadline == clock::time_point{}) deadline = deadline_after(m_context.timeout_s);
    check_wait(deadline);
    yield_core();
  }
}

void mpi_calls::check_wait(clock::time_point deadline) const {
  if (m_is_aborted.load(std::memory_order_relaxed) || m_context.is_aborted(m_context.runtime))
    throw aborted_error(ISTHMUS_HERE);
  if (clock::now() < deadline) return;
  const open_request& oldest = m_open_requests.front();
  throw make_error(
      ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
      fmt::format("{}: rank {} timed out after {} s; rank {} did not {}",
                  isthmus_collective_name(oldest.collective), m_context.rank, m_context.timeout_s, oldest.peer,
                  oldest.collective == ISTHMUS_SEND ? "receive" : "send"),
      "make sure that the peer posts the matching operation on this communicator, and that it is still running")
      .with_failed_ranks(std::array{oldest.peer});
}

void mpi_calls::cancel() noexcept {
  for (open_request& pending : m_open_requests)
    if (pending.request != nullptr) m_mpi.cancel(&pending.request);
  m_open_requests.clear();
}

void mpi_calls::fail(int code, isthmus_collective collective) {
  m_has_failed = true;
  char text[512] = "";
  m_mpi.error_string(code, text, sizeof text);
  throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                   fmt::format("{} failed in {}: {}", isthmus_collective_name(collective), m_mpi.library, text),
                   "see MPI's error text; make sure that all ranks pass the same count and datatype", code);
}

void mpi_calls::abort() {
  m_is_aborted.store(true, std::memory_order_seq_cst);
  const bool is_mpi_affected = m_has_failed || m_is_inside_mpi.load(std::memory_order_acquire);
  if (is_mpi_affected && can_revoke() && m_mpi.comm_revoke(m_comm) == 0 &&
      wait_until_outside_mpi(std::chrono::seconds(5), yielding))
    return;
  // Waits in this backend poll context->is_aborted and end by themselves. Before MPI_Abort kills the other
  // ranks, they get time to report their errors.
  if (wait_until_outside_mpi(std::chrono::seconds(1), std::chrono::milliseconds(10))) return;
  m_context.log(m_context.runtime, 2,
                "rank %d is inside an MPI collective, which MPI cannot cancel: ending the job with MPI_Abort",
                m_context.rank);
  m_mpi.comm_abort(m_comm, ISTHMUS_ERROR_ABORTED);
}

// ULFM: operations on a revoked communicator fail on all ranks, which can then shrink it.
bool mpi_calls::can_revoke() const {
  constexpr int thread_multiple = 3;
  return m_mpi.struct_bytes >= sizeof m_mpi && m_mpi.comm_revoke != nullptr &&
         m_mpi.thread_level >= thread_multiple;
}

bool mpi_calls::wait_until_outside_mpi(std::chrono::seconds limit, poll_pause pause) const {
  return poll_until([&] { return !m_is_inside_mpi.load(std::memory_order_acquire); }, deadline_after(limit),
                    pause);
}

}  // namespace isthmus::mpi
