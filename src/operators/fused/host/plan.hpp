// Host plans: counters that the ranks share, and the base class.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "core/worker.hpp"
#include "failure/wait.hpp"
#include "operators/fused/host/product.hpp"
#include "operators/fused/model/plan.hpp"

namespace isthmus::fused {

// The counters of one rank. Only this rank writes them.
struct alignas(64) counter_line {
  std::atomic<std::uint64_t> ready;          // rows published since the plan was created
  std::atomic<std::uint64_t> block;          // id of the heap block that holds them, or 0 for the plan's stage
  std::atomic<std::uint64_t> offset;         // in bytes, from the start of that block
  std::atomic<std::uint64_t> consumed_runs;  // runs for which this rank has read all rows of its peers
  std::atomic<std::uint64_t> failed;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "ranks of other processes read them");

// Counters that the ranks of a host plan use to synchronize: one line of monotonic counters per rank in the
// symmetric heap. Waits on them are bounded and detect failures.
class host_counters {
 public:
  // Collective. Allocates the lines and, if stage_bytes > 0, a stage of that size on every rank.
  host_counters(communicator& owner, std::uint64_t stage_bytes);

  counter_line& line(int rank) const { return *static_cast<counter_line*>(m_lines.address(rank)); }
  std::byte* stage(int rank) const { return static_cast<std::byte*>(m_stage->address(rank)); }

  // Waits until `counter` of `peer` is at least `value`.
  // Errors: throws error (TIMEOUT, REMOTE, ABORTED).
  void wait(int peer, const std::atomic<std::uint64_t>& counter, std::uint64_t value,
            const char* purpose) const;
  // Waits until `ready` returns true. `peer` and `purpose` are used in error messages.
  template <typename Ready>
  void wait_until(Ready&& ready, int peer, const char* purpose) const {
    for (bounded_wait wait_loop(*this, peer, purpose); !ready();) wait_loop.pause();
  }
  void wait_until_consumed(std::uint64_t run) const;
  // Makes the waits of all other ranks fail.
  void fail() const noexcept;

 private:
  class bounded_wait {
   public:
    bounded_wait(const host_counters& counters, int peer, const char* purpose)
        : m_counters(counters), m_peer(peer), m_purpose(purpose) {}
    void pause();

   private:
    const host_counters& m_counters;
    int m_peer;
    const char* m_purpose;
    backoff m_backoff{200, std::chrono::milliseconds(1)};  // yields briefly: products need the cores
  };

  communicator& m_owner;
  peer_block m_lines;
  std::optional<peer_block> m_stage;
};

// Base class of host plans: a thread copies chunks through shared memory while the caller computes.
class host_plan : public plan {
 public:
  void run(const isthmus_fused_arguments& arguments) override;
  void describe(nlohmann::json& info) const override;
  void synchronize() override {}
  void close() override;

 protected:
  // Collective.
  // Errors: all ranks throw error (UNSUPPORTED) if any rank has no BLAS.
  host_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);
  // Completes the construction of a derived class. Collective: measures costs, determines the schedule, and
  // allocates the counters and a stage of `stage_bytes` on every rank.
  void finish_setup(std::uint64_t stage_bytes);

  virtual void run_sequential(const isthmus_fused_arguments& arguments) = 0;
  // Work of the copy thread in a run that communicates: copies the chunks that the groups wait for, in their
  // order, and calls set_arrived_groups() after each. Runs in a separate thread; may throw.
  // A plan that is always sequential implements none of these functions.
  virtual void run_copies(const isthmus_fused_arguments& /*arguments*/) {}
  virtual void compute_group(std::size_t /*index*/, const isthmus_fused_arguments& /*arguments*/) {}
  // Ends a run, after all copies and products.
  virtual void finish() {}

  void set_arrived_groups(std::size_t groups) { m_arrived_groups.store(groups, std::memory_order_release); }
  // Copies rows of `row_bytes` bytes. Strides are in bytes.
  static void copy_rows(const std::byte* from, std::uint64_t from_stride, std::byte* to,
                        std::uint64_t to_stride, std::uint64_t row_bytes, std::uint64_t rows);

  const blas& m_blas;
  host_product m_product;
  std::optional<host_counters> m_counters;  // pipelined plans
  std::vector<std::byte> m_workspace, m_packed;
  std::uint64_t m_run_number = 0;  // number of pipelined runs that communicated
  bool m_is_staged = false;        // the latest run copied A to the plan's stage

 private:
  void run_pipelined_or_abort(const isthmus_fused_arguments& arguments);
  void run_pipelined(const isthmus_fused_arguments& arguments);
  void compute(const isthmus_fused_arguments& arguments);

  std::uint64_t m_stage_bytes = 0;
  std::optional<worker_thread> m_copy_thread;
  std::atomic<std::size_t> m_arrived_groups{
      0};  // number of groups that can be computed, including groups that do not wait for a chunk
  std::atomic<bool> m_has_copy_failed{false};
  std::optional<error> m_copy_failure;
};

}  // namespace isthmus::fused
