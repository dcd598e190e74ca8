// One rank of one communicator, served by copy engines.
#pragma once

#include <isthmus/backend.h>

#include <array>
#include <optional>
#include <span>
#include <string>

#include "backends/copy_engine/collective_call.hpp"
#include "backends/copy_engine/call_watchdog.hpp"

namespace isthmus::copy_engine {

// What a rule may name behind "copy_engine:". No name: push or else zero_copy, where the buffers that it needs
// are in the heap, else staged.
extern const char* const algorithm_names[];  // in the order of `algorithm`

class copy_engine_state {
 public:
  // Local. Throws isthmus::error. The context and the driver outlive it.
  copy_engine_state(const isthmus_backend_context& context, device_driver& driver, const settings& options);
  // Waits until no peer fetches from here any more, at most the timeout.
  ~copy_engine_state();
  copy_engine_state(const copy_engine_state&) = delete;
  copy_engine_state& operator=(const copy_engine_state&) = delete;

  // The memory that the ranks share, once all have it; before the first call.
  void open(const isthmus_heap_block& shared);
  // Who compiles the kernels of reductions; else why there are none, equal on all ranks. Before the first call.
  void set_compiler(kernel_compiler& compiler);
  void refuse_reductions(const std::string& reason);

  const char* supports(const isthmus_operation& operation, const char* algorithm) const;
  isthmus_status enqueue(const isthmus_operation* operations, const char* const* algorithms, std::size_t n);
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
  isthmus_status report_driver(const char* action, const isthmus_error_info& info);

  const isthmus_backend_context& m_context;
  rank_resources m_resources;
  call_log m_log;
  call_watchdog m_watchdog;
  owned_stream m_own_stream;  // stands in for the legacy NULL stream
  owned_event m_entry_event, m_end_event;
  bool m_has_end_event = false;
  std::uint32_t m_last_id = 0;
  std::string m_version;
  const char* m_no_reductions_reason = nullptr;   // the reason, if there is one
  std::array<std::uint32_t, 4> m_logged{};  // what log_staged_fallback has said: by algorithm, a bit for each collective
  block_map m_blocks;                      // of the call that is being issued
  // Filled anew by each call; kept for their memory.
  direct_buffers m_buffers;
  call_record m_record;
};

}  // namespace isthmus::copy_engine
