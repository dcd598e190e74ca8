// Maps each MPI communicator to an Isthmus communicator and runs operations on it. The Isthmus communicator is created inside one of the
// first collective calls, because all ranks take part in those. An attribute callback destroys it when the MPI
// communicator is freed.
#pragma once

#include <isthmus/isthmus.h>
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "frontends/mpi/engine_abi.hpp"
#include "frontends/mpi/message_store.hpp"
#include "frontends/preload/call_statistics.hpp"
#include "frontends/preload/communicators.hpp"

namespace isthmus::mpi_shim {

// Reasons for passing a call to MPI.
#define MPI_PASS_REASONS(X)                                                    \
  ISTHMUS_PASS_REASONS(X)                                                      \
  X(checked_by_mpi, "invalid argument, to be reported by MPI")                 \
  X(datatype, "datatype not supported by the reductions of Isthmus")           \
  X(operation, "reduction other than sum, prod, min and max")                  \
  X(intercommunicator, "intercommunicator")                                    \
  X(mpi_not_running, "MPI not initialized or already finalized")               \
  X(device_memory, "MPI library with support for device memory")               \
  X(ranks_not_promised, "not every rank is known to run the library")          \
  X(other_world, "processes outside of MPI_COMM_WORLD")                        \
  X(attach_failed, "ranks cannot access each other's memory")                  \
  X(no_rule_between_nodes, "no rule selects an Isthmus backend between nodes") \
  X(not_attached, "communicator not attached yet")
enum class pass_reason_code { MPI_PASS_REASONS(ISTHMUS_PASS_REASON_CODE) };

// The statistics of this process, by mpi_function. ISTHMUS_MPI_REPORT requests a report.
preload::call_statistics& statistics();

using preload::call_counter;

class attached_communicator : public preload::communicator_base {
 public:
  // Returns NULL for MPI_COMM_NULL and if MPI is not running. Takes a few nanoseconds after the first call.
  static attached_communicator* find(MPI_Comm comm);

  // Returns whether Isthmus handles this call. Collective: all ranks must call it once for each MPI call. Calls go
  // to MPI until they have taken as long as attaching, so that short-lived communicators are not attached. Blocking:
  // at calls 1, 2, 4, 8 and so on, the ranks compare their times with an allreduce.
  bool try_attach() {
    return m_state == attach_state::attached || (m_state == attach_state::unattached && attach_when_due());
  }
  // Calls MPI and measures the time, which decides when the communicator is attached.
  template <typename CallMpi>
  int call_mpi_unattached(CallMpi&& call_mpi) {
    if (m_state != attach_state::unattached) return call_mpi();
    const auto begin = std::chrono::steady_clock::now();
    const int code = call_mpi();
    add_time(std::chrono::steady_clock::now() - begin);
    return code;
  }
  // The reason why try_attach() returned false.
  pass_reason_code pass_reason() const { return m_pass_reason; }

  // The following functions require an attached communicator.
  // Returns whether the rules select a backend that is better than MPI. On a single node, every backend
  // counts as better.
  bool handles(const isthmus_operation& operation) { return !m_spans_nodes || is_better_than_mpi(operation); }

  // Lets MPI receive what other ranks have sent so far, as its own barrier would. Some MPI functions test for
  // completion before they make progress, and each test receives one message, so there is one test per peer.
  void progress_peers() {
    for (int peer = 1; peer < m_size; ++peer) progress_mpi(this);
  }

  // Passes all further calls to MPI.
  void pass_all_calls(pass_reason_code reason);

  // Returns the counter for such calls. Use only if a report was requested.
  call_counter& counter_for(mpi_function function, const isthmus_operation& operation, std::uint64_t bytes);

 private:
  friend class communicator_registry;
  enum class attach_state { unattached, attached, pass_through };

  static void progress_mpi(void* context);
  void reset(MPI_Comm comm);  // objects are reused and never freed
  void release();
  void add_time(std::chrono::duration<double> time);
  bool attach_when_due();
  void begin();
  bool attach();
  bool create();
  bool create_communicator(MPI_Comm copy);
  bool is_better_than_mpi(const isthmus_operation& operation);

  MPI_Comm m_comm = MPI_COMM_NULL;
  attach_state m_state = attach_state::unattached;
  std::uint64_t m_call_count = 0;  // calls that Isthmus could have handled
  double m_seconds_in_mpi = 0;     // counted time of these calls on this rank
  pass_reason_code m_pass_reason = pass_reason_code::attach_failed;
  // One per communicator, because two threads must not test the same request.
  MPI_Request m_pending_receive = MPI_REQUEST_NULL;
  std::unique_ptr<message_store> m_store;
  std::map<std::tuple<mpi_function, isthmus_datatype, std::uint64_t>, call_counter*> m_counters;
  bool m_spans_nodes = false;
  preload::decision_cache<bool> m_decisions;
};

// Outcome of an operation.
//   done: `code` is the MPI return code.
//   refused: Isthmus cannot use these buffers directly; no data was moved.
//   passed_through: MPI must execute the call; `reason` explains why.
struct outcome {
  enum class result_kind { done, refused, passed_through } kind;
  int code = MPI_SUCCESS;
  pass_reason_code reason = pass_reason_code::checked_by_mpi;
};

inline outcome completed(int code) { return {outcome::result_kind::done, code}; }
inline outcome pass_through(pass_reason_code reason = pass_reason_code::checked_by_mpi) {
  return {outcome::result_kind::passed_through, MPI_SUCCESS, reason};
}

// Runs an operation on an attached communicator. `bytes` is the size for the report.
// Errors: failures of Isthmus are passed to the communicator's error handler.
outcome execute(attached_communicator& communicator, MPI_Comm comm, mpi_function function,
                const isthmus_operation& operation, std::uint64_t bytes);

// Calls the communicator's error handler for a failure of Isthmus and returns `code`.
int raise_error(MPI_Comm comm, int code);

// Counts the reason and calls MPI.
template <typename CallMpi>
int pass_to_mpi(mpi_function function, pass_reason_code reason, CallMpi&& call_mpi) {
  statistics().count_passed_through(static_cast<int>(function), static_cast<int>(reason));
  return call_mpi();
}

// Runs attempt(communicator, use_staging), which returns an outcome, or passes the call to MPI. If Isthmus refuses the
// buffers because they overlap, which MPI forbids but does not detect, a second attempt uses staging buffers.
template <typename Attempt, typename CallMpi>
int run_collective(mpi_function function, MPI_Comm comm, Attempt&& attempt, CallMpi&& call_mpi) {
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator == nullptr) return pass_to_mpi(function, pass_reason_code::mpi_not_running, call_mpi);
  if (!communicator->try_attach())
    return pass_to_mpi(function, communicator->pass_reason(),
                       [&] { return communicator->call_mpi_unattached(call_mpi); });
  outcome result = attempt(*communicator, false);
  if (result.kind == outcome::result_kind::refused) result = attempt(*communicator, true);
  return result.kind == outcome::result_kind::done ? result.code
                                                   : pass_to_mpi(function, result.reason, call_mpi);
}

}  // namespace isthmus::mpi_shim
