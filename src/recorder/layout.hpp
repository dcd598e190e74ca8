// Files of the flight recorder: one file per rank and communicator with a header, the pids of all ranks, the
// selection reasons and a ring of entries. Other processes read it while it is written and after its writer has
// died. A trace has the same layout with a longer ring, and its file is not removed.
//
// Names: /dev/shm/isthmus-UID-TOKEN-RANK, readable only by their owner; traces are in the folder that ISTHMUS_TRACE
// names. The token is random, so no other user can create a file of that name first.
#pragma once

#include <isthmus/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "failure/health.hpp"

namespace isthmus::recorder {

inline constexpr std::uint64_t file_magic = 0x33'4f43'4552'5449;  // "ITRECO3": 3 is the layout version
inline constexpr std::uint64_t ring_entries = 256;                // in the file in shared memory
inline constexpr std::uint64_t max_entries = 1u << 24;
inline constexpr std::uint32_t max_reasons = 64;  // in a trace; the file in shared memory has none
inline constexpr std::size_t reason_bytes = 192;
inline constexpr std::size_t max_paths = 48, path_bytes = 48;
inline constexpr std::size_t max_backends = 16;

// Collective set-up steps of a communicator that are not in the collective table.
enum class setup_step : std::uint8_t { split = 128, heap_allocate = 129 };

enum class entry_state : std::uint64_t {
  inside,    // the call has not returned
  returned,  // returned; with a nonblocking backend, the operation may still run on its stream
  failed
};

// One cache line. Written by one thread at a time; the version identifies torn reads.
struct alignas(64) entry {
  std::atomic<std::uint64_t> version;    // 2p + 1 while the entry at position p is written, 2p + 2 afterwards
  std::atomic<std::uint64_t> number;     // counts from 1, separately for collectives and messages
  std::atomic<std::uint64_t> signature;  // pack(call_signature)
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> path;         // pack(call_origin)
  std::atomic<std::uint64_t> begin_ticks;  // ticks
  std::atomic<std::uint64_t> end_ticks;    // ticks; end of the call, not of the work on its stream
  std::atomic<std::uint64_t> state;        // entry_state
};
static_assert(sizeof(entry) == 64);

// Sample of three clocks, taken at the same time. All processes share the kernel's monotonic clock until
// the machine reboots.
struct clock_sample {
  std::uint64_t ticks, monotonic_ns, realtime_ns;
};

// Reads all three clocks. Takes about 100 ns.
clock_sample sample_clocks(bool has_counter) noexcept;

// Converts ticks to the kernel's monotonic clock, based on samples of both clocks.
class tick_scale {
 public:
  tick_scale(const clock_sample& first, const clock_sample& second, bool has_counter) : m_first(first) {
    if (has_counter && second.ticks > first.ticks && second.monotonic_ns > first.monotonic_ns)
      m_ns_per_tick = static_cast<double>(second.monotonic_ns - first.monotonic_ns) /
                      static_cast<double>(second.ticks - first.ticks);
  }
  // Converts ticks to nanoseconds of the monotonic clock; 0 stays 0.
  std::uint64_t ns_of(std::uint64_t ticks) const noexcept {
    if (ticks == 0) return 0;
    constexpr double limit_ns = 9e18;  // limits values of a damaged file
    const double elapsed_ns =
        std::clamp(static_cast<double>(static_cast<std::int64_t>(ticks - m_first.ticks)) * m_ns_per_tick,
                   -limit_ns, limit_ns);
    return m_first.monotonic_ns + static_cast<std::uint64_t>(static_cast<std::int64_t>(elapsed_ns));
  }

 private:
  clock_sample m_first;
  double m_ns_per_tick = 1;
};

struct alignas(64) header {
  std::uint64_t magic;
  std::uint32_t header_bytes, entry_bytes;
  std::array<std::uint64_t, 2> token;
  std::int32_t rank, size;
  std::int64_t pid;
  std::uint64_t start;                     // start time of the process (base/process.hpp)
  std::uint64_t pid_namespace;             // namespace of the pids
  std::uint64_t has_counter;               // 1: ticks come from the processor's counter; 0: nanoseconds
  std::uint64_t entries, reason_capacity;  // of this file: a power of two; 0 or max_reasons
  double timeout_s;
  std::uint64_t blocking_backends;   // bit per backend: its calls return only when the operation is complete
  std::atomic<std::uint32_t> paths;  // number of complete names
  std::atomic<std::uint32_t> reasons;
  std::atomic<std::uint64_t>
      clock_sample_count;         // the latest sample is clock_samples[clock_sample_count % 2 + 1]
  clock_sample clock_samples[3];  // [0]: creation of the file
  std::array<std::uint8_t, max_paths> backend_of_path;
  char path[max_paths][path_bytes];
  char program[64];
  char machine[64], boot[64];  // host name and boot id of the kernel
  health_record health;        // peers map it (peer_recording in recording.hpp)
};

inline constexpr std::uint64_t pids_offset = sizeof(header);

// Sizes and offsets of the sections of a file.
struct file_layout {
  std::uint64_t size = 1, entries = ring_entries, reasons = 0;

  constexpr std::uint64_t reasons_offset() const { return pids_offset + size * sizeof(std::int64_t); }
  constexpr std::uint64_t ring_offset() const {
    return (reasons_offset() + reasons * reason_bytes + 63) / 64 * 64;
  }
  constexpr std::uint64_t bytes() const { return ring_offset() + entries * sizeof(entry); }
};

// Arguments of a call in compact form. `collective` is a row of the collective table or a setup_step.
struct call_signature {
  std::uint8_t collective = 0, datatype = 0, op = 0;
  bool in_place = false, is_check = false;  // is_check: the ranks compare the call before it starts
  std::int32_t root = 0;
};

constexpr std::uint64_t pack(const call_signature& value) {
  return static_cast<std::uint64_t>(value.collective) | static_cast<std::uint64_t>(value.datatype) << 8 |
         static_cast<std::uint64_t>(value.op) << 16 | static_cast<std::uint64_t>(value.in_place) << 24 |
         static_cast<std::uint64_t>(value.is_check) << 25 |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(value.root)) << 32;
}
constexpr call_signature unpack(std::uint64_t word) {
  return {static_cast<std::uint8_t>(word),
          static_cast<std::uint8_t>(word >> 8),
          static_cast<std::uint8_t>(word >> 16),
          (word >> 24 & 1) != 0,
          (word >> 25 & 1) != 0,
          static_cast<std::int32_t>(static_cast<std::uint32_t>(word >> 32))};
}

// The origin of a call: the indices of its path and of its selection reason (0: none), and the ticks between
// request and start. In packed form, ticks are stored in units of 16 and saturate.
struct call_origin {
  std::uint32_t path = 0, reason = 0;
  std::uint64_t queued_ticks = 0;
};
constexpr std::uint64_t pack(const call_origin& value) {
  constexpr std::uint64_t max_units = 0xffff'ffff;
  const std::uint64_t units = value.queued_ticks / 16;
  return (value.path & 0xffffu) | std::uint64_t{value.reason & 0xffffu} << 16 |
         (units < max_units ? units : max_units) << 32;
}
constexpr call_origin origin_of(std::uint64_t word) {
  return {static_cast<std::uint32_t>(word & 0xffff), static_cast<std::uint32_t>(word >> 16 & 0xffff),
          (word >> 32) * 16};
}

// ---- names ---------------------------------------------------------------------------------------------

using token = std::array<std::uint64_t, 2>;

inline constexpr const char* shared_memory_folder = "/dev/shm";

std::string path_of_file(const token& communicator, int rank);

// Returns the files of this user. Root sees the files of all users.
std::vector<std::string> list_files();

// Removes stale files: all processes of the communicator have exited, and the file is older than
// `max_stale_age_s` or not among the newest `max_stale_files`. Unreadable files stay.
void remove_stale_files() noexcept;

// Maximum age in seconds and maximum number of the files that are kept after a job has exited
// without removing them.
inline constexpr double max_stale_age_s = 600;
inline constexpr std::size_t max_stale_files = 64;

// ---- traces ------------------------------------------------------------------------------------------

// Settings of ISTHMUS_TRACE.
struct trace_options {
  std::string folder;         // absolute path; "": no traces
  std::uint64_t entries = 0;  // number of most recent calls that a trace keeps; a power of two
  explicit operator bool() const { return !folder.empty(); }
};

// Reads the environment. Creates the folder if its parent exists. Throws error (CONFIG).
trace_options read_trace_options();

// Returns the path of a rank's trace. The token is random, so the path is unknown until
// the communicator exists.
std::string trace_path(const std::string& folder, const token& communicator, int rank);

// Returns the sorted paths of all traces in the folder. Throws error (INVALID_ARGUMENT) if the folder
// cannot be read.
std::vector<std::string> list_traces(const std::string& folder);

}  // namespace isthmus::recorder
