// The file of one rank of one communicator: a header, the processes of all ranks, the reasons of its choices,
// and a ring of entries. Other processes read it while it is written, and after its writer has died. A trace is
// such a file with a longer ring, that stays.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace isthmus::recorder {

inline constexpr std::uint64_t file_magic = 0x32'4f43'4552'5449;  // "ITRECO2"; another layout gets another
inline constexpr std::uint64_t ring_entries = 256;                // of the file in shared memory
inline constexpr std::uint64_t max_entries = 1u << 24;
inline constexpr std::uint32_t max_reasons = 64;  // of a trace; the other file has none
inline constexpr std::size_t reason_bytes = 192;
inline constexpr std::size_t max_paths = 48, path_bytes = 48;
inline constexpr std::size_t max_backends = 16;

// What no row of THE TABLE has but all ranks call together, in order: set-up within a communicator.
enum class setup_step : std::uint8_t { split = 128, heap_allocate = 129 };

enum class entry_state : std::uint64_t {
  inside,    // the call has not returned
  returned,  // it has; of a backend that does not block, the stream has the rest
  failed
};

// One line of the cache. Written by one thread at a time; torn ones are known by their version.
struct alignas(64) entry {
  std::atomic<std::uint64_t> version;    // 2p + 1 while the entry at position p is written, 2p + 2 after
  std::atomic<std::uint64_t> number;     // counts from 1: collectives, or messages to and from others
  std::atomic<std::uint64_t> signature;  // pack(signature)
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> path;   // pack(origin)
  std::atomic<std::uint64_t> begin_ticks;  // ticks
  std::atomic<std::uint64_t> end_ticks;  // ticks; of the call, not of what it left to a stream
  std::atomic<std::uint64_t> state;  // entry_state
};
static_assert(sizeof(entry) == 64);

enum class health : std::uint32_t { healthy, failed };

// One moment on three clocks. The kernel's monotonic one is shared by all processes until the machine starts
// anew.
struct clock_sample {
  std::uint64_t ticks, monotonic_ns, realtime_ns;
};

struct alignas(64) header {
  std::uint64_t magic;
  std::uint32_t header_bytes, entry_bytes;
  std::array<std::uint64_t, 2> token;
  std::int32_t rank, size;
  std::int64_t pid;
  std::uint64_t start;                     // of the process (base/process.hpp)
  std::uint64_t pid_namespace;             // where the pids mean something
  std::uint64_t has_counter;               // ticks are the processor's, not nanoseconds
  std::uint64_t entries, reason_capacity;  // of this file: a power of two, and 0 or max_reasons
  double timeout_s;
  std::uint64_t blocking_backends;  // a bit for each backend whose calls end with the operation
  std::atomic<std::uint64_t> call_count;
  std::atomic<std::uint32_t> state;  // life
  std::atomic<std::uint32_t> paths;  // names that are complete
  std::atomic<std::uint32_t> reasons;
  std::atomic<std::uint32_t> is_closed;    // 1: its rank has left in order
  std::atomic<std::uint64_t> clock_sample_count;  // how often; the latest stands in anchors[anchored % 2 + 1]
  clock_sample clock_samples[3];                    // the first when the file was made
  std::array<std::uint8_t, max_paths> backend_of_path;
  char path[max_paths][path_bytes];
  char program[64];
  char machine[64], boot[64];  // the host's name, and the kernel's id of this boot
  char failure[1024];          // complete once state is `failed`
};

inline constexpr std::uint64_t pids_offset = sizeof(header);

// How large the parts of a file are.
struct file_layout {
  std::uint64_t size = 1, entries = ring_entries, reasons = 0;

  constexpr std::uint64_t reasons_offset() const { return pids_offset + size * sizeof(std::int64_t); }
  constexpr std::uint64_t ring_offset() const {
    return (reasons_offset() + reasons * reason_bytes + 63) / 64 * 64;
  }
  constexpr std::uint64_t bytes() const { return ring_offset() + entries * sizeof(entry); }
};

// What a call asks for. `collective` is one of THE TABLE or a `step`.
struct call_signature {
  std::uint8_t collective = 0, datatype = 0, op = 0;
  bool in_place = false, is_check = false;  // checking: the ranks compare the call before it starts
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

// How a call came to its backend: its path's and its reason's index (0: none), and for how long it had been
// asked for when it began, in units of 16 ticks; what is longer than fits is cut.
struct call_origin {
  std::uint32_t path = 0, reason = 0;
  std::uint64_t queued_ticks = 0;
};
constexpr std::uint64_t pack(const call_origin& value) {
  constexpr std::uint64_t max_units = 0xffff'ffff;
  const std::uint64_t units = value.queued_ticks / 16;
  return (value.path & 0xffffu) | std::uint64_t{value.reason & 0xffffu} << 16 | (units < max_units ? units : max_units) << 32;
}
constexpr call_origin origin_of(std::uint64_t word) {
  return {static_cast<std::uint32_t>(word & 0xffff), static_cast<std::uint32_t>(word >> 16 & 0xffff),
          (word >> 32) * 16};
}

}  // namespace isthmus::recorder
