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

// No rank has anything to move.
bool moves_nothing(const isthmus_operation& operation) {
  return operation.count == 0 && has_equal_count(row_of(operation.collective));
}

// One rank's use of MPI.
class session {
 public:
  explicit session(const isthmus_backend_context& context) : m_context(context), m_mpi(*context.mpi) {}

  isthmus_status enqueue(const isthmus_operation* operations, std::size_t n) {
    const mpi_thread_guard guard(m_mpi);
    if (guard.violation() != nullptr)
      return m_context.fail(m_context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE, mpi_thread_guard::hint,
                            "%s", guard.violation());
    if (n == 1 && !is_point_to_point(operations[0].collective)) return run_collective(operations[0]);
    return run_batch(operations, n);
  }

  void abort() {
    const bool concerns_mpi = m_failed || m_inside.load(std::memory_order_acquire);
    if (concerns_mpi && can_revoke() && m_mpi.comm_revoke(m_context.mpi_comm) == 0 && leaves()) return;
    // Waits of our own poll context->is_aborted. The other ranks, which MPI_Abort ends, get time to say why.
    const auto last_words = clock::now() + std::chrono::seconds(1);
    while (m_inside.load(std::memory_order_acquire) && clock::now() < last_words)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!m_inside.load(std::memory_order_acquire)) return;
    m_context.log(m_context.runtime, 2,
                  "rank %d is inside an MPI collective, which MPI cannot cancel: ending the job with MPI_Abort",
                  m_context.rank);
    m_mpi.comm_abort(m_context.mpi_comm, ISTHMUS_ERROR_ABORTED);
  }

  const char* version() const { return m_mpi.library; }

 private:
  // ULFM's way out of a collective: it fails on all ranks, and they can shrink.
  bool can_revoke() const {
    constexpr int multiple = 3;
    return m_mpi.struct_bytes >= sizeof m_mpi && m_mpi.comm_revoke != nullptr && m_mpi.thread_level >= multiple;
  }

  bool leaves() const {
    const auto deadline = clock::now() + std::chrono::seconds(5);
    while (m_inside.load(std::memory_order_acquire)) {
      if (clock::now() > deadline) return false;
      sched_yield();
    }
    return true;
  }

  isthmus_status run_collective(const isthmus_operation& asked) {
    if (moves_nothing(asked)) return ISTHMUS_SUCCESS;
    const collective_row& row = row_of(asked.collective);
    if (!row.is_reduction || asked.op != ISTHMUS_AVG) return call(asked);
    isthmus_operation sum = asked;
    sum.op = ISTHMUS_SUM;
    const isthmus_status status = call(sum);
    const bool receives = uses_buffer(row.recv_ranks, asked.root == m_context.rank);
    if (status == ISTHMUS_SUCCESS && receives)
      mpi::divide(asked.recv_buf, asked.count, asked.datatype, m_context.size);
    return status;
  }

  isthmus_status call(const isthmus_operation& operation) {
    m_inside.store(true, std::memory_order_release);
    const int code = m_mpi.collective(m_context.mpi_comm, &operation);
    m_inside.store(false, std::memory_order_release);
    return code == 0 ? ISTHMUS_SUCCESS : native_failure(code, operation);
  }

  isthmus_status run_batch(const isthmus_operation* operations, std::size_t n) {
    m_open.clear();
    const isthmus_status status = start_and_finish(operations, n);
    for (open_request& left : m_open)  // after a failure: nothing may write later
      if (left.request != nullptr) m_mpi.cancel(&left.request);
    return status;
  }

  // Point to point starts at once and moves on while the collectives run in their order.
  isthmus_status start_and_finish(const isthmus_operation* operations, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      if (is_point_to_point(operations[i].collective) && !moves_nothing(operations[i]))
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
    if (code != 0) return native_failure(code, operation);
    m_open.push_back({request, &operation});
    return ISTHMUS_SUCCESS;
  }

  isthmus_status finish() {
    clock::time_point deadline{};
    for (std::uint64_t rounds = 1; !m_open.empty(); ++rounds) {
      for (std::size_t i = 0; i < m_open.size();) {
        int done = 0;
        const int code = m_mpi.test(&m_open[i].request, &done);
        if (code != 0) return native_failure(code, *m_open[i].operation);
        if (done == 0) {
          ++i;
        } else {
          m_open[i] = m_open.back();
          m_open.pop_back();
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
    const isthmus_operation& stuck = *m_open.front().operation;
    return fail_with_ranks(m_context, {stuck.root}, ISTHMUS_ERROR_TIMEOUT, 0, ISTHMUS_HERE,
                   "the peer did not call the other side with this communicator, or it is gone",
                   fmt::format("rank {} waited {} s to {} rank {}", m_context.rank, m_context.timeout_s,
                               stuck.collective == ISTHMUS_SEND ? "send to" : "receive from", stuck.root));
  }

  isthmus_status native_failure(int code, const isthmus_operation& operation) {
    m_failed = true;
    char text[512] = "";
    m_mpi.error_string(code, text, sizeof text);
    return m_context.fail(m_context.runtime, ISTHMUS_ERROR_BACKEND, code, ISTHMUS_HERE,
                          "the text is MPI's own; the same count and datatype are needed on all ranks",
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
  std::vector<open_request> m_open;
  std::atomic<bool> m_failed{false};  // MPI itself has: other ranks may be stuck in it
  std::atomic<bool> m_inside{false};  // a blocking MPI call is on its way; read by abort
};

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  if (context->mpi == nullptr)
    return context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE,
                         "create the communicator with isthmus::mpi::create",
                         "the communicator was not made from MPI");
  *state = new (std::nothrow) session(*context);
  if (*state == nullptr)
    return context->fail(context->runtime, ISTHMUS_ERROR_OUT_OF_MEMORY, 0, ISTHMUS_HERE, nullptr,
                         "host memory exhausted");
  return ISTHMUS_SUCCESS;
}

void destroy(void* state) { delete static_cast<session*>(state); }

const char* supports(void*, const isthmus_operation*, const char* algorithm) {
  return algorithm == nullptr ? nullptr : "MPI chooses its algorithms itself";
}

isthmus_status enqueue(void* state, const isthmus_operation* operations, const char* const*, std::size_t n) {
  return static_cast<session*>(state)->enqueue(operations, n);
}

void abort_session(void* state) { static_cast<session*>(state)->abort(); }

const char* version(void* state) { return static_cast<session*>(state)->version(); }

}  // namespace

const isthmus_backend* mpi_backend() noexcept {
  static const isthmus_backend backend = [] {
    isthmus_backend functions{};
    functions.struct_bytes = sizeof functions;
    functions.magic = ISTHMUS_BACKEND_MAGIC;
    functions.abi_version = ISTHMUS_BACKEND_ABI;
    functions.name = "mpi";
    functions.description = "the program's own MPI library, on host buffers";
    functions.capabilities =
        ISTHMUS_BACKEND_BLOCKING | ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS | ISTHMUS_BACKEND_MULTI_NODE;
    functions.platforms = 1u << ISTHMUS_PLATFORM_HOST;
    functions.create = create;
    functions.destroy = destroy;
    functions.supports = supports;
    functions.enqueue = enqueue;
    functions.abort = abort_session;
    functions.version = version;
    return functions;
  }();
  return &backend;
}

}  // namespace isthmus
