#include "backends/mpi/mpi_backend.hpp"

#include <isthmus/isthmus.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <isthmus/plugin.hpp>
#include <new>
#include <thread>
#include <vector>

#include "backends/mpi/divide.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"
#include "bootstrap/mpi_thread_guard.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;

// Returns true if no rank has data in this operation.
bool is_empty(const isthmus_operation& operation) {
  return operation.count == 0 && has_equal_count(row_of(operation.collective));
}

// The state of one rank.
class mpi_state {
 public:
  explicit mpi_state(const isthmus_backend_context& context) : m_context(context), m_mpi(*context.mpi) {}

  isthmus_status enqueue(const isthmus_operation* operations, std::size_t n) {
    const mpi_thread_guard guard(m_mpi);
    if (guard.violation() != nullptr)
      return m_context.fail(m_context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE,
                            mpi_thread_guard::hint, "%s", guard.violation());
    if (n == 1 && !is_point_to_point(operations[0].collective)) return run_collective(operations[0]);
    return run_group(operations, n);
  }

  void abort() {
    const bool is_mpi_affected = m_has_failed || m_is_inside_mpi.load(std::memory_order_acquire);
    if (is_mpi_affected && can_revoke() && m_mpi.comm_revoke(m_context.mpi_comm) == 0 &&
        wait_until_outside_mpi())
      return;
    // Waits in this backend poll context->is_aborted and end by themselves. Before MPI_Abort kills the other
    // ranks, they get time to report their errors.
    const auto grace_deadline = clock::now() + std::chrono::seconds(1);
    while (m_is_inside_mpi.load(std::memory_order_acquire) && clock::now() < grace_deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!m_is_inside_mpi.load(std::memory_order_acquire)) return;
    m_context.log(m_context.runtime, 2,
                  "rank %d is inside an MPI collective, which MPI cannot cancel: ending the job with MPI_Abort",
                  m_context.rank);
    m_mpi.comm_abort(m_context.mpi_comm, ISTHMUS_ERROR_ABORTED);
  }

  const char* version() const { return m_mpi.library; }

 private:
  // ULFM: operations on a revoked communicator fail on all ranks, which can then shrink it.
  bool can_revoke() const {
    constexpr int thread_multiple = 3;
    return m_mpi.struct_bytes >= sizeof m_mpi && m_mpi.comm_revoke != nullptr &&
           m_mpi.thread_level >= thread_multiple;
  }

  bool wait_until_outside_mpi() const {
    const auto deadline = clock::now() + std::chrono::seconds(5);
    while (m_is_inside_mpi.load(std::memory_order_acquire)) {
      if (clock::now() > deadline) return false;
      sched_yield();
    }
    return true;
  }

  isthmus_status run_collective(const isthmus_operation& requested) {
    if (is_empty(requested)) return ISTHMUS_SUCCESS;
    const collective_row& row = row_of(requested.collective);
    if (!row.is_reduction || requested.op != ISTHMUS_AVG) return call(requested);
    isthmus_operation sum = requested;
    sum.op = ISTHMUS_SUM;
    const isthmus_status status = call(sum);
    const bool is_receiver = uses_buffer(row.recv_ranks, requested.root == m_context.rank);
    if (status == ISTHMUS_SUCCESS && is_receiver)
      mpi::divide(requested.recv_buf, requested.count, requested.datatype, m_context.size);
    return status;
  }

  isthmus_status call(const isthmus_operation& operation) {
    m_is_inside_mpi.store(true, std::memory_order_release);
    const int code = m_mpi.collective(m_context.mpi_comm, &operation);
    m_is_inside_mpi.store(false, std::memory_order_release);
    return code == 0 ? ISTHMUS_SUCCESS : report_native_failure(code, operation);
  }

  isthmus_status run_group(const isthmus_operation* operations, std::size_t n) {
    m_open_requests.clear();
    const isthmus_status status = start_and_finish(operations, n);
    for (open_request& pending : m_open_requests)  // nothing may write to the buffers after a failure
      if (pending.request != nullptr) m_mpi.cancel(&pending.request);
    return status;
  }

  // Point-to-point operations start immediately and progress while the collectives run in order.
  isthmus_status start_and_finish(const isthmus_operation* operations, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      if (is_point_to_point(operations[i].collective) && !is_empty(operations[i]))
        if (const isthmus_status status = start(operations[i]); status != ISTHMUS_SUCCESS) return status;
    for (std::size_t i = 0; i < n; ++i)
      if (!is_point_to_point(operations[i].collective))
        if (const isthmus_status status = run_collective(operations[i]); status != ISTHMUS_SUCCESS)
          return status;
    return finish();
  }

  isthmus_status start(const isthmus_operation& operation) {
    void* request = nullptr;
    const int code = m_mpi.start(m_context.mpi_comm, &operation, &request);
    if (code != 0) return report_native_failure(code, operation);
    m_open_requests.push_back({request, &operation});
    return ISTHMUS_SUCCESS;
  }

  isthmus_status finish() {
    clock::time_point deadline{};
    for (std::uint64_t rounds = 1; !m_open_requests.empty(); ++rounds) {
      for (std::size_t i = 0; i < m_open_requests.size();) {
        int done = 0;
        const int code = m_mpi.test(&m_open_requests[i].request, &done);
        if (code != 0) return report_native_failure(code, *m_open_requests[i].operation);
        if (done == 0) {
          ++i;
        } else {
          m_open_requests[i] = m_open_requests.back();
          m_open_requests.pop_back();
        }
      }
      if (rounds % rounds_between_checks != 0) continue;
      if (deadline == clock::time_point{}) deadline = clock::now() + to_duration(m_context.timeout_s);
      if (const isthmus_status status = check_wait(deadline); status != ISTHMUS_SUCCESS) return status;
      sched_yield();
    }
    return ISTHMUS_SUCCESS;
  }

  static clock::duration to_duration(double seconds) {
    return std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds));
  }

  isthmus_status check_wait(clock::time_point deadline) {
    if (m_context.is_aborted(m_context.runtime)) return ISTHMUS_ERROR_ABORTED;
    if (clock::now() < deadline) return ISTHMUS_SUCCESS;
    const isthmus_operation& oldest = *m_open_requests.front().operation;
    return fail_with_ranks(
        m_context, {oldest.root}, ISTHMUS_ERROR_TIMEOUT, 0, ISTHMUS_HERE,
        "make sure that the peer posts the matching operation on this communicator, and that it is still "
        "running",
        fmt::format("{}: rank {} timed out after {} s; rank {} did not {}",
                    isthmus_collective_name(oldest.collective), m_context.rank, m_context.timeout_s,
                    oldest.root, oldest.collective == ISTHMUS_SEND ? "receive" : "send"));
  }

  isthmus_status report_native_failure(int code, const isthmus_operation& operation) {
    m_has_failed = true;
    char text[512] = "";
    m_mpi.error_string(code, text, sizeof text);
    return m_context.fail(m_context.runtime, ISTHMUS_ERROR_BACKEND, code, ISTHMUS_HERE,
                          "see MPI's error text; make sure that all ranks pass the same count and datatype",
                          "%s failed in %s: %s", isthmus_collective_name(operation.collective), m_mpi.library,
                          text);
  }

  struct open_request {
    void* request;
    const isthmus_operation* operation;
  };

  static constexpr std::uint64_t rounds_between_checks = 256;

  const isthmus_backend_context& m_context;
  const isthmus_mpi_table& m_mpi;
  std::vector<open_request> m_open_requests;
  std::atomic<bool> m_has_failed{false};     // an MPI call failed; other ranks may be stuck in MPI
  std::atomic<bool> m_is_inside_mpi{false};  // a blocking MPI call is in progress; read by abort
};

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  if (context->mpi == nullptr)
    return context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE,
                         "create the communicator with isthmus::mpi::create",
                         "the communicator was not created from MPI");
  *state = new (std::nothrow) mpi_state(*context);
  if (*state == nullptr)
    return context->fail(context->runtime, ISTHMUS_ERROR_OUT_OF_MEMORY, 0, ISTHMUS_HERE, nullptr,
                         "host memory exhausted");
  return ISTHMUS_SUCCESS;
}

void destroy(void* state) { delete static_cast<mpi_state*>(state); }

const char* supports(void*, const isthmus_operation*, int) { return nullptr; }

isthmus_status enqueue(void* state, const isthmus_operation* operations, const int*, std::size_t n) {
  return static_cast<mpi_state*>(state)->enqueue(operations, n);
}

void abort_operations(void* state) { static_cast<mpi_state*>(state)->abort(); }

const char* version(void* state) { return static_cast<mpi_state*>(state)->version(); }

}  // namespace

const isthmus_backend* mpi_backend() noexcept {
  static const isthmus_backend backend = [] {
    isthmus_backend functions{};
    functions.struct_bytes = sizeof functions;
    functions.magic = ISTHMUS_BACKEND_MAGIC;
    functions.abi_version = ISTHMUS_BACKEND_ABI;
    functions.name = "mpi";
    functions.description = "the MPI library of the program, on host buffers";
    functions.capabilities =
        ISTHMUS_BACKEND_BLOCKING | ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS | ISTHMUS_BACKEND_MULTI_NODE;
    functions.platforms = 1u << ISTHMUS_PLATFORM_HOST;
    functions.create = create;
    functions.destroy = destroy;
    functions.supports = supports;
    functions.enqueue = enqueue;
    functions.abort = abort_operations;
    functions.version = version;
    return functions;
  }();
  return &backend;
}

}  // namespace isthmus
