// Backend copy_engine: collectives with the devices' copy engines. Transfers between peers use no kernel on the
// compute units; only reduce_scatter launches a kernel, for the reduction.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <optional>
#include <span>
#include <string>

#include "backends/copy_engine/call_watchdog.hpp"
#include "backends/copy_engine/collective_call.hpp"

namespace isthmus {

// Asynchronous. Supports devices of one node that can map each other's memory. Built into the core, because it
// only needs the platform's driver, which is loaded at run time.
const isthmus_backend* copy_engine_backend() noexcept;

namespace copy_engine {

// The algorithm names that a rule can give after "copy_engine:". Without a name: push, then zero_copy, if the
// required buffers are in the symmetric heap; otherwise staged.
extern const char* const algorithm_names[];  // in the order of copy_algorithm

// The state of one rank of one communicator.
class copy_engine_state {
 public:
  // Not collective.
  // Errors: throws isthmus::error.
  // Lifetime: the context and the driver must outlive the object.
  copy_engine_state(const isthmus_backend_context& context, device_driver& driver, const settings& options);
  // Blocking: waits up to the timeout until no peer fetches from this rank's memory anymore.
  ~copy_engine_state();
  copy_engine_state(const copy_engine_state&) = delete;
  copy_engine_state& operator=(const copy_engine_state&) = delete;

  // Sets the memory that the ranks share. Must be called before the first call, after all ranks
  // have allocated it.
  void open(signal_memory signals, const isthmus_heap_block& staging);
  // Before the first call, one of: sets the compiler for reduction kernels, or the reason why there is none
  // (equal on all ranks).
  void set_compiler(kernel_compiler& compiler);
  void refuse_reductions(const std::string& reason);

  // `algorithm`: an index in algorithm_names or ISTHMUS_ANY_ALGORITHM.
  const char* supports(const isthmus_operation& operation, int algorithm) const;
  isthmus_status enqueue(const isthmus_operation* operations, const int* algorithms, std::size_t n);
  isthmus_status poll();
  isthmus_status synchronize();
  void abort();
  const char* version() const { return m_version.c_str(); }

 private:
  void start(const isthmus_operation& operation, std::optional<copy_algorithm> requested);
  void issue(const isthmus_operation& operation, std::optional<copy_algorithm> requested, bool captured);
  void prepare(std::span<const isthmus_operation> operations);
  bool find_buffers(const isthmus_operation& operation, copy_algorithm algorithm);
  copy_algorithm choose(const isthmus_operation& operation, std::optional<copy_algorithm> requested);
  void log_staged_fallback(isthmus_collective collective, copy_algorithm requested);
  bool is_idle();
  isthmus_status report(const call_failure& failure);
  isthmus_status report_driver_error(const char* action, const isthmus_error_info& info);

  const isthmus_backend_context& m_context;
  rank_resources m_resources;
  call_log m_log;
  call_watchdog m_watchdog;
  owned_stream m_own_stream;  // replaces the legacy NULL stream
  owned_event m_entry_event, m_end_event;
  bool m_has_end_event = false;
  std::uint32_t m_last_id = 0;
  std::string m_version;
  const char* m_unsupported_reductions_reason = nullptr;  // null if reductions are supported
  std::array<std::uint32_t, 4>
      m_logged{};      // by algorithm: one bit per collective, set if its fallback was logged
  block_map m_blocks;  // of the call that is being issued
  // Set by each call. These are members so that their memory is reused.
  direct_buffers m_buffers;
  call_record m_record;
};

}  // namespace copy_engine
}  // namespace isthmus
