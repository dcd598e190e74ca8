// The flight recorder of one rank of one communicator: what it has called, always on. It writes into a file in
// shared memory (layout.hpp) that others of this machine read (reader.hpp), also after its process has died.
//
// One thread writes at a time, as a communicator's calls come from one at a time; what is const, any may call.
// A call costs two readings of a clock and two lines of the cache. Where no file can be made the ring is
// private memory, and a warning says so.
#pragma once

#include <isthmus/types.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/tables.hpp"
#include "base/ticks.hpp"
#include "bootstrap/membership.hpp"
#include "recorder/layout.hpp"

namespace isthmus::recorder {

// The latest operation.
struct in_flight {
  std::uint64_t sequence = 0;  // changes with every operation
  isthmus_collective collective{};
  isthmus_datatype datatype{};
  std::uint64_t count = 0;
  bool busy = false;
};

class flight_recorder {
 public:
  flight_recorder(const membership& ranks, double timeout_s);
  ~flight_recorder();  // removes the file: who leaves in order leaves nothing behind
  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;

  // Before the calls: `index` is the backend's, the same on all ranks.
  void add_backend(std::size_t index, const std::string& name, bool blocking);

  // A call of the backend with these operations begins; `end` follows.
  void begin(std::size_t backend, const isthmus_operation* operations, const char* const* algorithms,
             std::size_t n) {
    const std::uint64_t now = read_ticks(m_counter);
    m_open = n;
    for (std::size_t i = 0; i < n; ++i) {
      const isthmus_operation& of = operations[i];
      const signature asked{static_cast<std::uint8_t>(of.collective),
                            static_cast<std::uint8_t>(of.datatype),
                            static_cast<std::uint8_t>(of.op),
                            is_in_place(of),
                            false,
                            of.root};
      write(is_message(of.collective) ? ++m_messages : ++m_collectives, asked, of.count,
            path_of(backend, algorithms == nullptr ? nullptr : algorithms[i]), now);
    }
  }
  void end(bool success) noexcept {
    const std::uint64_t now = read_ticks(m_counter);
    const std::uint64_t last = m_header->written.load(std::memory_order_relaxed);
    const std::uint64_t first = last - std::min<std::uint64_t>(m_open, ring_entries);
    for (std::uint64_t position = first; position < last; ++position) {
      entry& at = m_ring[position % ring_entries];
      at.ended.store(now, std::memory_order_relaxed);
      at.state.store(static_cast<std::uint64_t>(success ? entry_state::returned : entry_state::failed),
                     std::memory_order_release);
    }
  }

  // What all ranks call together beside operations.
  void begin(step what, std::uint64_t count);
  // The ranks compare this call, and those behind it in its group, before it begins.
  void begin_check(const isthmus_operation& of);

  // Once, at the first failure.
  void fail(const char* message) noexcept;

  // Any thread.
  in_flight latest() const noexcept;
  std::uint64_t written() const noexcept { return m_header->written.load(std::memory_order_relaxed); }

 private:
  struct memory;
  struct known_path {
    std::size_t backend = ~std::size_t{0};
    const char* algorithm = nullptr;
    std::uint64_t index = 0;
  };

  std::uint64_t path_of(std::size_t backend, const char* algorithm) {
    if (m_last_path.backend == backend && m_last_path.algorithm == algorithm) return m_last_path.index;
    return find_path(backend, algorithm);
  }
  std::uint64_t find_path(std::size_t backend, const char* algorithm);

  // As THE TABLE has it; where blocks differ in length their own is not looked for.
  bool is_in_place(const isthmus_operation& of) const {
    const alias_rule rule = row_of(of.collective).in_place;
    const auto own = static_cast<std::uintptr_t>(m_header->rank) * of.count * bytes_of(of.datatype);
    const auto send = reinterpret_cast<std::uintptr_t>(of.send_buf);
    const auto recv = reinterpret_cast<std::uintptr_t>(of.recv_buf);
    if (rule == alias_rule::recv_block) return send == recv + own;
    if (rule == alias_rule::send_block) return recv == send + own;
    return rule == alias_rule::same && send == recv;
  }

  // Release and acquire at every field: a reader that sees one of them sees the odd version, too.
  void write(std::uint64_t number, const signature& asked, std::uint64_t count, std::uint64_t path,
             std::uint64_t now) noexcept {
    const std::uint64_t position = m_header->written.load(std::memory_order_relaxed);
    entry& at = m_ring[position % ring_entries];
    at.version.store(2 * position + 1, std::memory_order_relaxed);
    at.number.store(number, std::memory_order_release);
    at.signature.store(pack(asked), std::memory_order_release);
    at.count.store(count, std::memory_order_release);
    at.path.store(path, std::memory_order_release);
    at.begun.store(now, std::memory_order_release);
    at.ended.store(0, std::memory_order_release);
    at.state.store(static_cast<std::uint64_t>(entry_state::inside), std::memory_order_release);
    at.version.store(2 * position + 2, std::memory_order_release);
    m_header->written.store(position + 1, std::memory_order_release);
  }

  const bool m_counter = has_invariant_counter();
  std::unique_ptr<memory> m_memory;
  header* m_header;
  entry* m_ring;
  std::uint64_t m_collectives = 0, m_messages = 0;
  std::uint64_t m_open = 0;  // entries of the call that has begun
  std::array<std::string, most_backends> m_names;
  known_path m_last_path;
  std::array<known_path, most_paths> m_paths;
};

}  // namespace isthmus::recorder
