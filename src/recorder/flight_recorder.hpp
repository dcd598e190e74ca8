// The flight recorder of one rank of one communicator: what it has called, always on. It writes into a file in
// shared memory (layout.hpp) that others of this machine read (reader.hpp), also after its process has died.
//
// One thread writes at a time, as a communicator's calls come from one at a time; what is const, any may call.
// A call costs two readings of a clock and two lines of the cache. Where no file can be made the ring is
// private memory, and a warning says so. With ISTHMUS_TRACE every call is written into a second, longer file.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <string>

#include "base/tables.hpp"
#include "base/ticks.hpp"
#include "bootstrap/membership.hpp"
#include "recorder/recording.hpp"
#include "recorder/trace_folder.hpp"

namespace isthmus::recorder {

// The latest operation.
struct latest_operation {
  std::uint64_t sequence = 0;  // changes with every operation
  isthmus_collective collective{};
  isthmus_datatype datatype{};
  std::uint64_t count = 0;
  bool is_busy = false;
};

// What only a trace keeps of a call.
struct request_info {
  std::uint64_t ticks = 0;  // when; 0 where nothing is traced
  std::uint32_t reason = 0;
};

class flight_recorder {
 public:
  flight_recorder(const membership& ranks, double timeout_s, const trace_options& trace = {});
  ~flight_recorder();  // who leaves in order leaves nothing behind but the trace that was asked for
  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;

  // Before the calls: `index` is the backend's, the same on all ranks.
  void add_backend(std::size_t index, const std::string& name, bool is_blocking);

  // A call of the backend with these operations begins; `end` follows. `asked`: of each; NULL: just now.
  void begin(std::size_t backend, const isthmus_operation* operations, const char* const* algorithms,
             std::size_t n, const request_info* requested = nullptr) {
    const std::uint64_t now = read_ticks(m_has_counter);
    m_open = n;
    for (std::size_t i = 0; i < n; ++i) {
      const isthmus_operation& operation = operations[i];
      const call_signature signature{static_cast<std::uint8_t>(operation.collective),
                             static_cast<std::uint8_t>(operation.datatype),
                             static_cast<std::uint8_t>(operation.op),
                             is_in_place(operation),
                             false,
                             operation.root};
      const std::uint32_t path = path_of(backend, algorithms == nullptr ? nullptr : algorithms[i]);
      write(is_point_to_point(operation.collective) ? ++m_messages : ++m_collectives, signature, operation.count, path, now,
            requested == nullptr ? request_info{} : requested[i]);
    }
  }
  void end(bool success) noexcept {
    const std::uint64_t now = read_ticks(m_has_counter);
    const entry_state state = success ? entry_state::returned : entry_state::failed;
    m_shared.end(m_open, now, state);
    if (m_trace) [[unlikely]]
      m_trace.end(m_open, now, state);
  }

  // For request_info: now, and a choice's reason, where there is a trace; else 0.
  std::uint64_t trace_ticks() const noexcept { return m_trace ? read_ticks(m_has_counter) : 0; }
  std::uint32_t reason_index(const std::string& text) { return m_trace ? m_trace.add_reason(text) : 0; }

  // What all ranks call together beside operations.
  void begin(setup_step step, std::uint64_t count);
  // The ranks compare this call, and those behind it in its group, before it begins.
  void begin_check(const isthmus_operation& operation);

  // Once, at the first failure.
  void fail(const char* message) noexcept;

  // Any thread.
  latest_operation latest() const noexcept;
  std::uint64_t call_count() const noexcept { return m_shared.head().call_count.load(std::memory_order_relaxed); }

 private:
  struct known_path {
    std::size_t backend = ~std::size_t{0};
    const char* algorithm = nullptr;
    std::uint32_t index = 0;
  };

  std::uint32_t path_of(std::size_t backend, const char* algorithm) {
    if (m_last_path.backend == backend && m_last_path.algorithm == algorithm) return m_last_path.index;
    return find_path(backend, algorithm);
  }
  std::uint32_t find_path(std::size_t backend, const char* algorithm);

  // As THE TABLE has it; where blocks differ in length their own is not looked for.
  bool is_in_place(const isthmus_operation& operation) const {
    const alias_rule rule = row_of(operation.collective).in_place;
    const auto own = static_cast<std::uintptr_t>(m_shared.head().rank) * operation.count * bytes_of(operation.datatype);
    const auto send = reinterpret_cast<std::uintptr_t>(operation.send_buf);
    const auto recv = reinterpret_cast<std::uintptr_t>(operation.recv_buf);
    if (rule == alias_rule::recv_block) return send == recv + own;
    if (rule == alias_rule::send_block) return recv == send + own;
    return rule == alias_rule::same && send == recv;
  }

  void write(std::uint64_t number, const call_signature& signature, std::uint64_t count, std::uint32_t path,
             std::uint64_t now, const request_info& requested) noexcept {
    m_shared.write(number, signature, count, pack(call_origin{path}), now);
    if (!m_trace) [[likely]]
      return;
    const std::uint64_t queued = requested.ticks == 0 ? 0 : now - requested.ticks;
    m_trace.write(number, signature, count, pack(call_origin{path, requested.reason, queued}), now);
    m_trace.sample_clocks_if_due(now);
  }

  const bool m_has_counter = has_invariant_counter();
  recording m_shared, m_trace;
  std::uint64_t m_collectives = 0, m_messages = 0;
  std::uint64_t m_open = 0;  // entries of the call that has begun
  std::array<std::string, max_backends> m_names;
  known_path m_last_path;
  std::array<known_path, max_paths> m_paths;
};

}  // namespace isthmus::recorder
