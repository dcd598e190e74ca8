// Maps each NCCL communicator to its attached Isthmus communicator and decides which library
// executes a call.
#pragma once

#include <isthmus/isthmus.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "frontends/nccl/nccl_api.hpp"
#include "frontends/nccl/pass_reasons.hpp"
#include "frontends/nccl/stream_order.hpp"
#include "frontends/preload/handle_cache.hpp"

namespace isthmus::nccl_shim {

// Bytes of this rank's contribution.
std::uint64_t bytes_of(const isthmus_operation& operation);

class attached_communicator {
 public:
  // Returns the object of an NCCL handle, or NULL if the engine did not see its creation.
  // Takes a few nanoseconds.
  static attached_communicator* find(nccl_comm comm);
  // Adds a new handle. Its calls are passed through with this reason until it is attached, if ever.
  static attached_communicator& add(nccl_comm comm, pass_reason_code reason);

  std::uintptr_t key() const { return m_key.load(std::memory_order_acquire); }
  bool is_attached() const { return m_is_attached.load(std::memory_order_acquire); }
  pass_reason_code pass_reason() const { return m_pass_reason; }
  isthmus_communicator handle() const { return m_handle; }
  int rank() const { return m_rank; }
  int size() const { return m_size; }
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
  nccl_result async_error();
  // Waits briefly for the last call. Returns whether it has completed.
  bool wait_until_idle() const;

  // Only for attached communicators: whether Isthmus handles the call, which is the same on all ranks, and
  // the reason if not.
  struct call_decision {
    bool is_handled;
    pass_reason_code reason;
    preload::call_counter* counter;  // NULL if no report was requested
  };
  call_decision decide(const isthmus_operation& operation);

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
  struct cached_decision {
    std::uint64_t signature = ~std::uint64_t{0}, count = 0;
    call_decision decision{};
  };
  call_decision query_decision(const isthmus_operation& operation);
  void reset(nccl_comm comm, pass_reason_code reason);

  std::atomic<std::uintptr_t> m_key{0};
  nccl_comm m_comm = nullptr;
  std::atomic<bool> m_is_attached{false};
  pass_reason_code m_pass_reason = pass_reason_code::not_attached;
  int m_rank = -1, m_size = 0, m_device = -1;
  isthmus_communicator m_handle = nullptr;
  std::mutex m_mutex;  // serializes the program's calls and the queries of its watchdog
  stream_order m_order;
  std::array<cached_decision, 128> m_decisions{};
};

// The backends that are equivalent to NCCL itself, for isthmus_communicator_options::external_backends.
inline constexpr const char* external_backend_names = "nccl,rccl";

}  // namespace isthmus::nccl_shim
