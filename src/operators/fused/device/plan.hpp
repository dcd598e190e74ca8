// Device plans: memory that the ranks share, and the base class.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/communicator.hpp"
#include "device/owned.hpp"
#include "device/signal_channel.hpp"
#include "failure/watchdog.hpp"
#include "memory/signal_memory.hpp"
#include "operators/fused/device/product.hpp"
#include "operators/fused/model/plan.hpp"

namespace isthmus::fused {

// Memory that the ranks of a device plan share: a buffer in the symmetric heap, into which peers push rows or partial
// sums, and flags in host memory (device/signal_channel.hpp). The streams use the flags as counters.
class shared_memory {
 public:
  // Collective. No chunks have arrived, and there is room.
  // Errors: all ranks throw error if one of them fails.
  shared_memory(communicator& owner, device_driver& driver, std::uint64_t buffer_bytes);

  // Returns the flag of `owner` with the number of chunks that `source` has pushed in the current run.
  std::uint32_t* arrived(int owner, int source) const { return m_channel.ready(owner, 0, source); }
  // Returns the flag of `owner` that is 1 if the buffer of `target` has room for the chunks of a run. Its own flag is 1 if
  // no run is executed.
  std::uint32_t* room(int owner, int target) const { return m_channel.acknowledgement(owner, 0, target); }
  std::byte* buffer(int rank) const { return static_cast<std::byte*>(m_buffer->address(rank)); }

  std::uint64_t buffer_bytes() const { return m_buffer_bytes; }

  // Releases all waits of this rank's streams in the current run, after the communicator has failed.
  void release_all() const;
  // Never reuses the flags: a stuck stream may still write to them.
  void abandon_flags() noexcept { m_signals.abandon(); }

 private:
  int m_rank, m_size;
  std::uint64_t m_buffer_bytes;
  signal_memory m_signals;
  signal_channel m_channel;
  std::optional<peer_block> m_buffer;
};

// Base class of device plans. It owns the streams and events, the flags that synchronize the ranks, the matrix
// product with its measured costs, and the watch that supervises runs.
//
// Protocol: A rank waits until its targets have room, and clears their flags. Copy engines push chunks on the copy
//   stream, and the sender counts them in a flag of the receiver. The receiver's receive stream waits for this flag and
//   records an event for each chunk. At the end of a run, it clears its counters and announces room for the next run.
//   The flags have the same values before and after each run, so a captured run can be replayed between other runs.
//   The caller's stream has only products and events, because each operation on a flag takes 2 to 3 us (H200).
// Blocking: run() never waits. synchronize() waits for this rank's runs, close() also for the targets of its chunks.
class device_plan : public plan {
 public:
  ~device_plan() override;

  void run(const isthmus_fused_arguments& arguments) override;
  void describe(nlohmann::json& info) const override;
  void synchronize() override;
  void close() override;

 protected:
  struct side_stream {  // a stream, and an event that records its progress
    owned_stream stream;
    owned_event event;
  };
  struct group_times {  // of one group, in traced plans
    owned_event copy_begin, copy_end, product_begin, product_end;
    std::string copy_name;  // of the chunk that this rank pushed after the group; empty: none
  };
  struct push_peers {
    std::vector<int> sources, targets;  // the ranks that push to this rank, and those to which it pushes
  };

  // Collective.
  // Errors: all ranks throw error (UNSUPPORTED) if a library is missing on any rank.
  device_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);
  // Completes the construction of a derived class. Collective: creates the shared memory, with a buffer of
  // `buffer_bytes` on every rank, measures costs, and determines the schedule.
  void finish_setup(std::uint64_t buffer_bytes, push_peers peers);

  virtual void enqueue_sequential(const isthmus_fused_arguments& arguments) = 0;
  // Enqueues everything between the start and the end of a run. The copy stream and the receive stream are forked before
  // it, and the copy stream is joined after it. In a run that communicates, arguments.stream must wait for all chunks.
  virtual void enqueue_pipelined(const isthmus_fused_arguments& arguments) = 0;

  // Makes the copy stream wait until all targets have room. The next push_chunk clears their flags.
  void wait_for_room();
  // Copies chunk number `chunk` of this run, counted from 1, to the buffer of `target`, on the copy stream. `group`: index
  // of the group whose times in the trace include this copy.
  void push_chunk(int target, std::uint32_t chunk, std::byte* to, const std::byte* from, std::size_t group);
  // Makes the receive stream wait for a chunk, which the products of `group` use.
  void receive_chunk(int source, std::uint32_t chunk, std::size_t group);
  // Makes a stream wait for that chunk.
  void wait_for_chunk(std::size_t group, native_stream stream);

  // Orders later work of the side stream after the start of the run, and later work of `stream` after the side stream.
  void fork(const side_stream& side);
  void join(const side_stream& side, native_stream stream);

  // Device memory for the gathered A, or for all of C before its rows are summed. The first call allocates it.
  std::byte* workspace();
  void copy(void* to, const void* from, std::uint64_t bytes, native_stream stream);
  void record_time(owned_event group_times::* event, std::size_t group, native_stream stream);

  // Driver and BLAS library, loaded at run time.
  struct device_libraries {
    device_driver& driver;
    const blaslt& blas;
  };
  static device_libraries find_libraries(communicator& owner);

  const device_libraries m_libraries;
  device_driver& m_driver;
  int m_device;
  device_product m_product;
  std::optional<shared_memory> m_shared;   // empty if pipelined runs are impossible
  side_stream m_copy, m_receive, m_local;  // pushes; waits for chunks; copies within the device

 private:
  void begin_run(const isthmus_fused_arguments& arguments);
  void end_run(const isthmus_fused_arguments& arguments);
  std::uint32_t* progress_word() const { return static_cast<std::uint32_t*>(m_progress.get()); }
  void finish_run(native_stream stream);
  double hang_limit_s() const;
  void wait_for_targets();
  void collect_times();
  void start_watch();
  std::uint32_t current_run() const;
  bool is_still_stuck(std::uint32_t number) const;
  std::vector<int> late_sources() const;
  void report_timeout();
  bool is_timed() const { return m_problem.is_traced() && !m_is_captured; }
  cost_model measure();
  void check_options();
  double measure_product_us(std::uint64_t rows, std::byte* a, std::byte* b, std::byte* c);
  double measure_link(const std::byte* from);
  double measure_collective_us(std::byte* full_matrix);
  template <typename Work>
  double time_us(int repetitions, native_stream stream, Work&& work);
  template <typename Work>
  double min_time_us(int repetitions, native_stream stream, Work&& work);
  std::int64_t run_start_ns();

  push_peers m_peers;
  std::vector<word_step> m_push_words;          // issued together with the next chunk
  std::vector<owned_event> m_arrivals;          // of the chunks, by group
  owned_event m_start, m_end;                   // of the latest run that communicated
  owned_event m_finished;                       // of the latest run outside of captures
  owned_event m_run_start, m_run_end, m_probe;  // traced plans only: start and end of a run, and a later event
  std::vector<group_times> m_times;
  isthmus_fused_view m_view = ISTHMUS_FUSED_WHOLE;  // of the latest run
  owned_memory m_workspace;
  bool m_is_captured = false;          // the latest run was captured
  bool m_has_run = false;              // m_finished was recorded
  bool m_has_collected_times = false;  // the latest run's times are in the timeline

  // Number of the run that the receive stream executes, which it writes; 0: none. A captured run repeats its number.
  owned_pinned m_progress;
  std::uint32_t m_run_number = 0;              // of the latest run; wraps, and is then never 0
  watchdog_clock::time_point m_last_change{};  // of the run number, seen by the thread of on_stuck
  std::optional<watch> m_watch;                // declared last, because it uses the other members
};

}  // namespace isthmus::fused
