// Platform-independent interface of a plan, called by the C entry points, and what the plans of all platforms share.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "operators/fused/model/problem.hpp"
#include "operators/fused/model/schedule.hpp"

namespace isthmus::fused {

enum class trace_track { compute, copy, stage };

struct trace_slice {
  trace_track track;
  std::string name;
  std::int64_t begin_ns, end_ns;  // on the steady clock, which all processes of a machine share
};

// The timeline of one run: when data was copied and when products were computed.
class timeline {
 public:
  using clock = std::chrono::steady_clock;

  explicit timeline(bool is_enabled) : m_is_enabled(is_enabled) {}
  bool is_enabled() const { return m_is_enabled; }
  void clear();
  // Thread safety: any thread.
  void add(trace_slice slice);
  // Returns the Chrome trace format: process = rank, thread = track.
  nlohmann::json chrome(int rank) const;

  static std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count();
  }

 private:
  bool m_is_enabled;
  mutable std::mutex m_mutex;
  std::vector<trace_slice> m_slices;
};

// Adds the lifetime of this object to a timeline, if the timeline is enabled.
class scoped_trace {
 public:
  template <typename Name>
  scoped_trace(timeline& target, trace_track track, Name&& name) : m_timeline(target), m_track(track) {
    if (!target.is_enabled()) return;
    m_name = name();
    m_begin_ns = timeline::now_ns();
  }
  ~scoped_trace() {
    if (m_timeline.is_enabled()) m_timeline.add({m_track, std::move(m_name), m_begin_ns, timeline::now_ns()});
  }
  scoped_trace(const scoped_trace&) = delete;
  scoped_trace& operator=(const scoped_trace&) = delete;

 private:
  timeline& m_timeline;
  trace_track m_track;
  std::string m_name;
  std::int64_t m_begin_ns = 0;
};

// A block of the symmetric heap, with its address on every rank.
class peer_block {
 public:
  // Collective.
  // Errors: throws UNSUPPORTED if this rank's device cannot access a peer's device.
  peer_block(communicator& owner, std::uint64_t bytes);

  void* own() const { return m_own.get(); }
  void* address(int rank) const { return m_peers[static_cast<std::size_t>(rank)]; }
  const std::vector<void*>& peers() const { return m_peers; }

 private:
  struct release {
    communicator* owner;
    void operator()(void* block) const noexcept;
  };
  std::unique_ptr<void, release> m_own;
  std::vector<void*> m_peers;  // addresses in this process
};

class plan {
 public:
  plan(std::shared_ptr<communicator> owner, fused_problem problem)
      : m_owner(std::move(owner)), m_problem(problem), m_timeline(problem.is_traced()) {}
  virtual ~plan() = default;
  plan(const plan&) = delete;
  plan& operator=(const plan&) = delete;

  // Runs the plan. Precondition: the arguments have been checked.
  // Errors: throws error. A failure after the run started aborts the communicator.
  virtual void run(const isthmus_fused_arguments& arguments) = 0;
  // Adds entries that depend on the platform and on the latest run to `info`: libraries, workspace, notes.
  virtual void describe(nlohmann::json& info) const = 0;
  // Waits for this rank's latest run.
  // Blocking: up to the timeout.
  virtual void synchronize() = 0;
  // Releases all resources. Called after synchronize.
  // Errors: throws failures of pending work.
  virtual void close() = 0;

  const fused_problem& problem() const { return m_problem; }
  const fused_schedule& schedule() const { return m_schedule; }
  const cost_model& costs() const { return m_costs; }
  const timeline& trace() const { return m_timeline; }
  // The time of this rank's latest run with this view; std::nullopt if there was none, or if it was not measured.
  std::optional<double> measured_us(isthmus_fused_view view) const { return m_measured_us[view]; }
  communicator& owner() const { return *m_owner; }

 protected:
  // Collective. Determines the schedule that all ranks use from the costs.
  void choose_schedule();
  // Collective. Determines the schedule of GEMM_ALLREDUCE. `obstacle`: as for make_allreduce_schedule.
  // Errors: all ranks throw error (UNSUPPORTED) if pipelined was requested and a rank has an obstacle.
  void choose_allreduce_schedule(const std::string& obstacle);
  // Runs the communicator's collective for the shards of all ranks. `stream`: NULL on the host.
  void enqueue_collective(const void* send, void* recv, isthmus_stream stream);
  // Aborts the communicator after a failure of a run.
  void abort(const error& failure);

  std::shared_ptr<communicator> m_owner;
  fused_problem m_problem;
  cost_model m_costs;
  fused_schedule m_schedule;
  timeline m_timeline;
  std::array<std::optional<double>, 3> m_measured_us;  // by view
};

// Collective.
// Errors: throws on all ranks or on none, except for OUT_OF_MEMORY.
std::unique_ptr<plan> make_host_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);
std::unique_ptr<plan> make_host_scatter_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);
std::unique_ptr<plan> make_host_allreduce_plan(std::shared_ptr<communicator> owner,
                                               const fused_problem& problem);
std::unique_ptr<plan> make_device_gather_plan(std::shared_ptr<communicator> owner,
                                              const fused_problem& problem);
std::unique_ptr<plan> make_device_scatter_plan(std::shared_ptr<communicator> owner,
                                               const fused_problem& problem);
std::unique_ptr<plan> make_device_allreduce_plan(std::shared_ptr<communicator> owner,
                                                 const fused_problem& problem);

// Reads option backend.fused.<key> as a number > 0. Returns `fallback` if it is not set.
// Errors: throws error (CONFIG).
double read_number_option(const communicator& owner, const char* key, double fallback);

}  // namespace isthmus::fused
