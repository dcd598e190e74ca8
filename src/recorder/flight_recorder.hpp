// Flight recorder of one rank of one communicator: records its latest calls and is always on. It writes to a
// file in shared memory (layout.hpp) that other processes of this machine can read (reader.hpp), even after the
// writing process has died. If the file cannot be created, it uses memory without a name, which only the peers can
// find, and logs a warning. With
// ISTHMUS_TRACE, every call is also written to a second, longer file.
//
// Cost: two clock readings and two cache lines per call.
// Thread safety: one writer at a time, like all calls of a communicator; any thread can call const functions.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <string>

#include "base/block_map.hpp"
#include "base/tables.hpp"
#include "base/ticks.hpp"
#include "bootstrap/membership.hpp"
#include "recorder/recording.hpp"

namespace isthmus::recorder {

// The most recent operation.
struct latest_operation {
  std::uint64_t sequence = 0;  // changes with every operation
  isthmus_collective collective{};
  isthmus_datatype datatype{};
  std::uint64_t count = 0;
  bool is_busy = false;
  std::uint64_t collective_number =
      0;  // of a busy collective: equal on all ranks of the communicator; otherwise 0
};

// Data of a call that only a trace stores.
struct request_info {
  std::uint64_t ticks = 0;  // time of the request; 0 without a trace
  std::uint32_t reason = 0;
};

class flight_recorder {
 public:
  flight_recorder(const membership& ranks, double timeout_s, const trace_options& trace = {});
  ~flight_recorder();  // removes the file in shared memory; a trace stays
  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;

  // Must be called before the first call. `index`: index of the backend, equal on all ranks. `algorithms`: the
  // names of its algorithms (isthmus_backend::algorithms).
  void add_backend(std::size_t index, const std::string& name, bool is_blocking,
                   const char* const* algorithms = nullptr);

  // Begins a call of the backend with `n` operations; end() must follow. `requests`: one entry per operation,
  // or NULL if the program has only just requested them.
  void begin(std::size_t backend, const isthmus_operation* operations, const int* algorithms, std::size_t n,
             const request_info* requests = nullptr) {
    const std::uint64_t now = read_ticks(m_has_counter);
    m_open_entries = n;
    for (std::size_t i = 0; i < n; ++i) {
      const isthmus_operation& operation = operations[i];
      const call_signature signature{static_cast<std::uint8_t>(operation.collective),
                                     static_cast<std::uint8_t>(operation.datatype),
                                     static_cast<std::uint8_t>(operation.op),
                                     is_in_place(operation),
                                     false,
                                     operation.root};
      const std::uint32_t path = path_of(backend, algorithms == nullptr ? -1 : algorithms[i]);
      write(is_point_to_point(operation.collective) ? ++m_messages : ++m_collectives, signature,
            operation.count, path, now, requests == nullptr ? request_info{} : requests[i]);
    }
  }
  void end(bool is_successful) noexcept {
    const std::uint64_t now = read_ticks(m_has_counter);
    const entry_state state = is_successful ? entry_state::returned : entry_state::failed;
    m_shared_recording.end(m_open_entries, now, state);
    if (m_trace) [[unlikely]]
      m_trace.end(m_open_entries, now, state);
  }

  // Members of a request_info: the current time and the index of a selection reason; both 0 without a trace.
  std::uint64_t trace_ticks() const noexcept { return m_trace ? read_ticks(m_has_counter) : 0; }
  std::uint32_t reason_index(const std::string& text) { return m_trace ? m_trace.add_reason(text) : 0; }

  // Begins a collective set-up step, which is not an operation.
  void begin(setup_step step, std::uint64_t count);
  // Begins the mismatch check of this call and of the rest of its group. The ranks run this check before they
  // start the call.
  void begin_check(const isthmus_operation& operation);

  // Records the first failure, which is not published to peers. Has no effect after another failure.
  void fail(const failure_info& failure) noexcept;
  // This rank's record, or NULL if other processes cannot see it.
  health_record* shared_health() noexcept {
    return m_shared_recording.is_shared() ? &m_shared_recording.head().health : nullptr;
  }
  // The ranks exchange these addresses to map each other's records.
  recording_address address() const noexcept {
    const header& head = m_shared_recording.head();
    return {head.pid, m_shared_recording.descriptor()};
  }
  // This rank has destroyed its communicator.
  void mark_destroyed() noexcept { m_shared_recording.mark(health_record::destroyed); }
  bool mark_exiting() noexcept { return m_shared_recording.mark(health_record::exiting); }
  // Records the rank that a long wait is blocked on; -1: none. Any thread.
  void set_awaited_rank(int rank) noexcept {
    m_shared_recording.head().health.awaited_rank.store(static_cast<std::uint32_t>(rank + 1),
                                                        std::memory_order_relaxed);
  }

  // Any thread.
  latest_operation latest() const noexcept;
  std::uint64_t call_count() const noexcept {
    return m_shared_recording.head().health.call_count.load(std::memory_order_relaxed);
  }

 private:
  struct known_path {
    std::size_t backend = ~std::size_t{0};
    int algorithm = -1;
    std::uint32_t index = 0;
  };

  std::uint32_t path_of(std::size_t backend, int algorithm) {
    if (m_last_path.backend == backend && m_last_path.algorithm == algorithm) return m_last_path.index;
    return find_or_add_path(backend, algorithm);
  }
  std::uint32_t find_or_add_path(std::size_t backend, int algorithm);

  bool is_in_place(const isthmus_operation& operation) const {
    const auto& head = m_shared_recording.head();
    return isthmus::is_in_place(operation, block_map(operation, head.rank, head.size));
  }

  void write(std::uint64_t number, const call_signature& signature, std::uint64_t count, std::uint32_t path,
             std::uint64_t now, const request_info& request) noexcept {
    m_shared_recording.write(number, signature, count, pack(call_origin{path}), now);
    if (!m_trace) [[likely]]
      return;
    const std::uint64_t queued_ticks = request.ticks == 0 ? 0 : now - request.ticks;
    m_trace.write(number, signature, count, pack(call_origin{path, request.reason, queued_ticks}), now);
    m_trace.sample_clocks_if_due(now);
  }

  const bool m_has_counter = has_invariant_counter();
  recording m_shared_recording, m_trace;
  std::uint64_t m_collectives = 0, m_messages = 0;
  std::uint64_t m_open_entries = 0;  // entries of the current call
  std::array<std::string, max_backends> m_names;
  std::array<const char* const*, max_backends> m_algorithms{};
  known_path m_last_path;
  std::array<known_path, max_paths> m_paths;
};

}  // namespace isthmus::recorder
