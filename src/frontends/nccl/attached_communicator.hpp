// Maps each NCCL communicator to its attached Isthmus communicator, decides which library executes a call, and counts
// the decisions.
#pragma once

#include <isthmus/isthmus.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "frontends/nccl/native.hpp"
#include "frontends/nccl/stream_order.hpp"
#include "frontends/preload/call_statistics.hpp"
#include "frontends/preload/communicators.hpp"

namespace isthmus::nccl_shim {

// Reasons for passing a call through to NCCL.
#define NCCL_PASS_REASONS(X)                                                                            \
  ISTHMUS_PASS_REASONS(X)                                                                               \
  X(checked_by_nccl, "invalid argument, to be reported by NCCL")                                        \
  X(operation, "user-defined reduction (PreMulSum)")                                                    \
  X(configuration, "per-call configuration (ncclAllReduceConfig etc.)")                                 \
  X(rule, "selected by a rule")                                                                         \
  X(unknown_communicator, "communicator created by an unsupported call (ncclCommShrink, ncclCommGrow)") \
  X(non_blocking, "non-blocking communicator")                                                          \
  X(no_id, "unique id without an Isthmus id (not seen, or no room)")                                    \
  X(not_attached, "communicator not attached to Isthmus")
enum class pass_reason_code { NCCL_PASS_REASONS(ISTHMUS_PASS_REASON_CODE) };
const char* reason_text(pass_reason_code reason);

// The statistics of this process, by isthmus_collective. ISTHMUS_NCCL_REPORT enables the report.
preload::call_statistics& statistics();

inline void count_passed_through(isthmus_collective collective, pass_reason_code reason) noexcept {
  statistics().count_passed_through(static_cast<int>(collective), static_cast<int>(reason));
}

// Bytes of this rank's contribution.
std::uint64_t bytes_of(const isthmus_operation& operation);

class attached_communicator : public preload::communicator_base {
 public:
  // Returns the object of an NCCL handle, or NULL if the engine did not see its creation.
  // Takes a few nanoseconds.
  static attached_communicator* find(native_comm comm);
  // Adds a new handle. Its calls are passed through with this reason until it is attached, if ever.
  static attached_communicator& add(native_comm comm, pass_reason_code reason);

  bool is_attached() const { return m_is_attached.load(std::memory_order_acquire); }
  pass_reason_code pass_reason() const { return m_pass_reason; }
  int device() const { return m_device; }

  // Queries rank, size and device from NCCL. Returns false if NCCL fails or if there is no CUDA driver, which
  // is needed to order calls.
  bool query_properties();
  // Takes ownership of the Isthmus communicator for these ranks.
  void attach(isthmus_communicator handle);
  void set_pass_reason(pass_reason_code reason) { m_pass_reason = reason; }
  // Passes all later calls through to NCCL. Any thread.
  void detach();
  // Ends the waits of this rank's calls.
  void abort();
  // Releases all Isthmus resources after this rank's work has completed. Must be called before the
  // NCCL handle is destroyed.
  void release();
  // Returns the failure that Isthmus has detected, as an NCCL result code. Any thread.
  native_result async_error();
  // Waits briefly for the last call. Returns whether it has completed.
  bool wait_until_idle() const;

  // Only for attached communicators: whether Isthmus handles the call, which is the same on all ranks, and
  // the reason if not.
  struct call_decision {
    bool is_handled;
    pass_reason_code reason;
    preload::call_counter* counter;  // NULL if no report was requested
  };
  call_decision decide(const isthmus_operation& operation) {
    return m_decisions.find(operation, [&] { return query_decision(operation); });
  }

  // Executes a call that Isthmus handles, in order. Returns an NCCL result code.
  int execute(const isthmus_operation& operation, preload::call_counter* counter);
  // For callers that execute several calls at once or pass a call through to NCCL.
  stream_order& order() { return m_order; }
  // Handles a failed or unsupported call. Returns the code for the program, or `pass_to_nccl` if NCCL
  // must execute the call.
  static constexpr int pass_to_nccl = -1;
  int handle_failure(isthmus_status status);

 private:
  friend class communicator_registry;
  call_decision query_decision(const isthmus_operation& operation);
  void reset(native_comm comm, pass_reason_code reason);

  native_comm m_comm = nullptr;
  std::atomic<bool> m_is_attached{false};
  pass_reason_code m_pass_reason = pass_reason_code::not_attached;
  int m_device = -1;
  std::mutex m_mutex;  // serializes the program's calls and the queries of its watchdog
  stream_order m_order;
  preload::decision_cache<call_decision> m_decisions;
};

// The backends that are equivalent to NCCL itself, for isthmus_communicator_options::external_backends.
inline constexpr const char* external_backend_names = "nccl,rccl";

}  // namespace isthmus::nccl_shim
