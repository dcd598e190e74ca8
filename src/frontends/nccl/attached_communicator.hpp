// Which communicator of Isthmus stands beside which of NCCL, and what each does with a call.
#pragma once

#include <isthmus/isthmus.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "frontends/nccl/pass_reasons.hpp"
#include "frontends/nccl/nccl_api.hpp"
#include "frontends/nccl/stream_order.hpp"
#include "frontends/preload/handle_cache.hpp"

namespace isthmus::nccl_shim {

// Of this rank's part.
std::uint64_t bytes_of(const isthmus_operation& operation);

class attached_communicator {
 public:
  // That of NCCL's handle; NULL: none that the engine has seen being made. A few nanoseconds.
  static attached_communicator* find(nccl_comm comm);
  // Notes a new handle. Until attached, or for ever, its calls go to NCCL for this reason.
  static attached_communicator& add(nccl_comm comm, pass_reason_code reason);

  std::uintptr_t key() const { return m_key.load(std::memory_order_acquire); }
  bool is_attached() const { return m_is_attached.load(std::memory_order_acquire); }
  pass_reason_code pass_reason() const { return m_pass_reason; }
  isthmus_communicator handle() const { return m_handle; }
  int rank() const { return m_rank; }
  int size() const { return m_size; }
  int device() const { return m_device; }

  // Asks NCCL for rank, size and device. False where it does not say, or there is no driver to order calls by.
  bool query_properties();
  // What Isthmus made for these ranks; from now on this one owns it.
  void attach(isthmus_communicator handle);
  void set_pass_reason(pass_reason_code reason) { m_pass_reason = reason; }
  // From now on all calls go to NCCL. Any thread.
  void detach();
  // Ends what this rank's calls wait for.
  void abort();
  // Before NCCL's handle ends: everything of Isthmus' is released, behind this rank's work.
  void release();
  // What Isthmus knows of a failure, as NCCL's code. Any thread.
  nccl_result async_error();
  // Whether what was called last is complete, waiting a little.
  bool wait_until_idle() const;

  // Of an attached one: whether Isthmus takes the call, which all ranks answer alike; else why not.
  struct call_decision {
    bool is_handled;
    pass_reason_code reason;
    preload::call_counter* counter;  // NULL where nothing is reported
  };
  call_decision decide(const isthmus_operation& operation);

  // Carries out a call that was decided on, in order. NCCL's code.
  int execute(const isthmus_operation& operation, preload::call_counter* counter);
  // For those who carry out several at once, or leave one to NCCL.
  stream_order& order() { return m_order; }
  // After Isthmus refused or failed: the code for the program, or `pass_to_nccl` where NCCL shall have the call.
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
  std::mutex m_mutex;  // calls of the program, and its watchdog's questions
  stream_order m_order;
  std::array<cached_decision, 128> m_decisions{};
};

// The backends that stand for NCCL itself, as isthmus_communicator_options::external_backends has them.
inline constexpr const char* external_backend_names = "nccl,rccl";

}  // namespace isthmus::nccl_shim
