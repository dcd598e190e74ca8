// Writer of one recorder file: the file in shared memory, which other processes read, or a trace.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "bootstrap/membership.hpp"
#include "recorder/layout.hpp"

namespace isthmus::recorder {

// Where the peers of a rank find its recording.
struct recording_address {
  std::int64_t pid = 0;
  std::int64_t descriptor = -1;  // of memory without a name in process `pid`; -1: the file at path_of_file()
};

// Read-only view of the recording of another rank of this machine.
class peer_recording {
 public:
  // Returns nullptr if the rank has no recording that this process can read.
  static std::shared_ptr<const peer_recording> open(const token& communicator, int rank,
                                                    const recording_address& address) noexcept;
  ~peer_recording();
  peer_recording(const peer_recording&) = delete;
  peer_recording& operator=(const peer_recording&) = delete;

  health_record* health() const noexcept { return &m_header->health; }
  // Returns true if the rank's call of that collective has ended, or if the recording no longer shows it.
  bool has_completed(std::uint64_t number) const noexcept;

 private:
  peer_recording() = default;

  header* m_header = nullptr;
  std::size_t m_bytes = 0;
};

// A default-constructed recording has no file; only operator bool may be called.
class recording {
 public:
  recording();
  ~recording();
  recording(const recording&) = delete;
  recording& operator=(const recording&) = delete;

  // Creates a new file that only its user can access. Returns 0, or errno if it cannot be created.
  int open(const std::string& path, bool is_persistent, const file_layout& layout);
  // Uses memory without a name instead of a file. It is private if the kernel has no shared memory without a name,
  // or if the process has no descriptor left. Throws std::bad_alloc.
  void open_unnamed(const file_layout& layout);
  // Completes the header. Until then readers reject the file.
  void publish(const membership& ranks, double timeout_s, bool has_counter);

  explicit operator bool() const noexcept { return m_header != nullptr; }
  // Returns true if other processes can read this recording.
  bool is_shared() const noexcept;
  int descriptor() const noexcept;  // of shared memory without a name; -1: none
  // Publishes that the rank has destroyed its communicator, or that its process is exiting (health_record). Returns
  // false, without effect, in a forked child, which shares the memory.
  bool mark(std::uint32_t closing) noexcept;
  header& head() noexcept { return *m_header; }
  const header& head() const noexcept { return *m_header; }
  const entry& entry_at(std::uint64_t position) const noexcept { return m_ring[position & m_mask]; }

  // Every field is stored with release order, so a reader that sees a new field also sees the odd version.
  void write(std::uint64_t number, const call_signature& signature, std::uint64_t count, std::uint64_t path,
             std::uint64_t now) noexcept {
    const std::uint64_t position = m_header->health.call_count.load(std::memory_order_relaxed);
    entry& slot = m_ring[position & m_mask];
    slot.version.store(2 * position + 1, std::memory_order_relaxed);
    slot.number.store(number, std::memory_order_release);
    slot.signature.store(pack(signature), std::memory_order_release);
    slot.count.store(count, std::memory_order_release);
    slot.path.store(path, std::memory_order_release);
    slot.begin_ticks.store(now, std::memory_order_release);
    slot.end_ticks.store(0, std::memory_order_release);
    slot.state.store(static_cast<std::uint64_t>(entry_state::inside), std::memory_order_release);
    slot.version.store(2 * position + 2, std::memory_order_release);
    m_header->health.call_count.store(position + 1, std::memory_order_release);
  }
  // Ends the latest `n` entries.
  void end(std::uint64_t n, std::uint64_t now, entry_state state) noexcept {
    const std::uint64_t last = m_header->health.call_count.load(std::memory_order_relaxed);
    for (std::uint64_t position = last - std::min(n, m_mask + 1); position < last; ++position) {
      entry& slot = m_ring[position & m_mask];
      slot.end_ticks.store(now, std::memory_order_relaxed);
      slot.state.store(static_cast<std::uint64_t>(state), std::memory_order_release);
    }
  }

  void add_path(std::size_t backend, const std::string& name);
  std::uint32_t add_reason(const std::string& reason);  // returns its index; 0 if there is no room

  // For traces: samples the clocks, because a later reader cannot measure the rate of the counter. The interval
  // is one eighth of the age of the file, so samples are rare.
  void sample_clocks_if_due(std::uint64_t now) noexcept {
    if (now >= m_next_sample) [[unlikely]]
      add_clock_sample(now);
  }

 private:
  struct memory;

  bool is_own() const noexcept;  // false in a forked child of the process that created it
  void attach(const file_layout& layout);
  void add_clock_sample(std::uint64_t now) noexcept;

  std::unique_ptr<memory> m_memory;
  header* m_header = nullptr;
  entry* m_ring = nullptr;
  std::uint64_t m_mask = 0;
  std::uint64_t m_next_sample = 0;
};

}  // namespace isthmus::recorder
