// Device plans: memory that the ranks share, and the base class.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "core/communicator.hpp"
#include "device/owned.hpp"
#include "device/signal_channel.hpp"
#include "failure/watchdog.hpp"
#include "operators/fused/device/product.hpp"
#include "operators/fused/model/plan.hpp"

namespace isthmus::fused {

// Memory that the ranks of a device plan share in the symmetric heap: flags that their streams use to wait for
// each other, used as sequence numbers (device/signal_channel.hpp), and a stage for rows outside the symmetric
// heap or for partial sums.
class shared_memory {
 public:
  // Collective. Flags are initialized to 0.
  shared_memory(communicator& owner, device_driver& driver, std::uint64_t stage_bytes);

  // Returns the flag of `owner` in which `writer` counts the steps of its rows or sums that can be fetched.
  std::uint32_t* ready(int owner, int writer) const { return m_channel.ready(owner, 0, writer); }
  // Returns the flag of `owner` in which `reader` counts the runs whose data it has fetched completely.
  std::uint32_t* done(int owner, int reader) const { return m_channel.acknowledgement(owner, 0, reader); }
  std::byte* stage(int rank) const { return static_cast<std::byte*>(m_stage->address(rank)); }

  std::uint64_t stage_bytes() const { return m_stage_bytes; }

  // Releases all waits of this rank's streams after the communicator has failed. The data that they fetch is
  // not used.
  void release_all();

 private:
  int m_rank, m_size;
  std::uint64_t m_stage_bytes;
  peer_block m_flags;
  signal_channel m_channel;
  signal_monitor m_monitor;
  std::optional<peer_block> m_stage;
};

// Base class of device plans. It owns the streams and events, the flags that synchronize the ranks, the matrix
// product with its measured costs, and the watch that supervises runs.
//
// Blocking: copy engines transfer chunks on a separate stream; the host never waits.
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
  };

  // Collective.
  // Errors: all ranks throw error (UNSUPPORTED) if a library is missing on any rank.
  device_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);
  // Completes the construction of a derived class. Collective: creates the shared memory, with a stage of
  // `stage_bytes` on every rank, measures costs, and determines the schedule.
  void finish_setup(std::uint64_t stage_bytes);

  virtual void enqueue_sequential(const isthmus_fused_arguments& arguments) = 0;
  // Enqueues everything between the start of a run, at m_start, and its end on arguments.stream. m_run_number
  // counts the runs that communicate, including this one.
  // Without finish_setup, there is no shared memory, and m_start and m_run_number are not set.
  virtual void enqueue_pipelined(const isthmus_fused_arguments& arguments) = 0;

  // Device memory for the gathered A, or for all of C before its rows are summed. The first call allocates it.
  std::byte* workspace();
  void copy(void* to, const void* from, std::uint64_t bytes, native_stream stream);
  // Makes `stream` wait for all work enqueued so far on the two side streams.
  void join_side_streams(native_stream stream);
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
  std::optional<shared_memory> m_shared;  // empty if pipelined runs are impossible
  side_stream m_copy, m_signal;
  native_event m_start = nullptr;           // of the current run's events
  std::uint32_t m_run_number = 0;           // wraps
  std::vector<owned_event> m_group_events;  // by group

 private:
  struct run_events {
    std::uint64_t number;
    owned_event start, finished;
  };

  void begin_run(const isthmus_fused_arguments& arguments);
  void end_run(native_stream stream);
  void collect_times();
  void start_watch();
  void acquire_events();
  watched_operation oldest_run();
  bool all_runs_ended();
  cost_model measure();
  double measure_product_us(std::uint64_t rows, std::byte* a, std::byte* b, std::byte* c);
  double measure_link(std::byte* to);
  double measure_collective_us(std::byte* full_matrix);
  template <typename Work>
  double time_us(int repetitions, native_stream stream, Work&& work);
  template <typename Work>
  double min_time_us(int repetitions, native_stream stream, Work&& work);
  std::int64_t run_start_ns();

  native_event m_finished = nullptr;            // of the latest run's events
  owned_event m_run_start, m_run_end, m_probe;  // traced plans only: start and end of a run, and a later event
  std::vector<group_times> m_times;
  isthmus_fused_view m_view = ISTHMUS_FUSED_WHOLE;  // of the latest run
  owned_memory m_workspace;
  bool m_has_run = false;
  bool m_has_collected_times = false;  // the latest run's times are in the timeline

  std::optional<run_events> m_current;  // of the run that is being enqueued
  std::uint64_t m_last_number = 0;
  std::mutex m_runs_mutex;  // guards m_runs and m_spare_events
  // Runs that may not have ended, oldest first. Callers enqueue many runs without waiting, and the oldest one
  // is the one that hangs.
  std::deque<run_events> m_runs;
  std::vector<run_events> m_spare_events;
  std::optional<watch> m_watch;  // declared last, because it uses the other members
};

}  // namespace isthmus::fused
