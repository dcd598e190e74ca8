// Base class of host plans: a thread copies chunks through shared memory while the caller computes.
#pragma once

#include <atomic>
#include <optional>

#include "core/worker.hpp"
#include "operators/fused/host/counters.hpp"
#include "operators/fused/host/product.hpp"
#include "operators/fused/model/plan.hpp"

namespace isthmus::fused {

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
  virtual void run_copies(const isthmus_fused_arguments& arguments) = 0;
  virtual void compute_group(std::size_t index, const isthmus_fused_arguments& arguments) = 0;
  // Ends a run, after all copies and products.
  virtual void finish() = 0;

  void set_arrived_groups(std::size_t groups) { m_arrived_groups.store(groups, std::memory_order_release); }
  // Copies rows of `row_bytes` bytes. Strides are in bytes.
  static void copy_rows(const std::byte* from, std::uint64_t from_stride, std::byte* to,
                        std::uint64_t to_stride, std::uint64_t row_bytes, std::uint64_t rows);

  const blas& m_blas;
  host_product m_product;
  std::optional<host_counters> m_counters;  // pipelined plans
  std::vector<std::byte> m_workspace, m_packed;
  std::uint64_t m_run_number = 0;  // number of pipelined runs that communicated

 private:
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
