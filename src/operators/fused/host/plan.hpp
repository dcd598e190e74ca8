// What the plans of the host share: a thread moves chunks through shared memory while the caller computes.
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
  host_plan(std::shared_ptr<communicator> owner, const fused_problem& problem, const blas& library);
  // The rest of a derived class's construction. Collective: costs, the order, and the counters with a stage of
  // so many bytes on every rank.
  void finish_setup(std::uint64_t stage_bytes);

  virtual void run_sequential(const isthmus_fused_arguments& arguments) = 0;
  // The mover's part of a run that communicates: what the groups wait for, in their order, each followed by
  // arrived(). In a thread of its own; may throw.
  virtual void run_copies(const isthmus_fused_arguments& arguments) = 0;
  virtual void compute_group(std::size_t index, const isthmus_fused_arguments& arguments) = 0;
  // The end of a run, after all has been moved and computed.
  virtual void finish() = 0;

  void set_arrived_groups(std::size_t groups) { m_arrived_groups.store(groups, std::memory_order_release); }
  // Rows of `row_bytes` bytes, the strides in bytes.
  static void copy_rows(const std::byte* from, std::uint64_t from_stride, std::byte* to,
                        std::uint64_t to_stride, std::uint64_t row_bytes, std::uint64_t rows);

  const blas& m_blas;
  host_product m_product;
  std::optional<host_counters> m_counters;  // pipelined plans
  std::vector<std::byte> m_workspace, m_packed;
  bool m_is_staged = false;
  std::uint64_t m_run_number = 0;  // pipelined runs that communicated

 private:
  void run_pipelined(const isthmus_fused_arguments& arguments);
  void compute(const isthmus_fused_arguments& arguments);

  std::uint64_t m_stage_bytes = 0;
  std::optional<worker> m_copy_thread;
  std::atomic<std::size_t> m_arrived_groups{0};  // of the order's groups, those that wait for nothing included
  std::atomic<bool> m_has_copy_failed{false};
  std::optional<error> m_copy_failure;
};

}  // namespace isthmus::fused
