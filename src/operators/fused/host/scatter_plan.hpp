// GEMM_REDUCE_SCATTER on the host. The partial sum of each rank's rows travels around the ring, from the next
// rank to the rank itself. The copy thread fetches the partial sums of the previous rank in chunks. The calling
// thread adds its products to them.
#pragma once

#include "operators/fused/host/plan.hpp"

namespace isthmus::fused {

class host_scatter_plan : public host_plan {
 public:
  host_scatter_plan(std::shared_ptr<communicator> owner, const fused_problem& problem, const blas& library);

 private:
  struct matrix_rows {
    std::byte* first;
    std::uint64_t leading;  // elements between rows
  };

  void run_sequential(const isthmus_fused_arguments& arguments) override;
  void run_copies(const isthmus_fused_arguments& arguments) override;
  void compute_group(std::size_t index, const isthmus_fused_arguments& arguments) override;
  void finish() override {}  // no peer reads A or B

  void multiply(std::uint64_t first_row, std::uint64_t rows, const matrix_rows& to, float beta,
                const void* bias, const isthmus_fused_arguments& arguments);
  void compute_all(const isthmus_fused_arguments& arguments);
  void reduce_all(const isthmus_fused_arguments& arguments);
  void wait_for_stage();
  void publish_groups(std::uint64_t groups);
  // Partial sums of a group: on this rank's stage, which the next rank reads, or in C in the last step.
  matrix_rows sums(std::size_t index, const isthmus_fused_arguments& arguments) const;
  std::byte* staged_sums(int rank, std::size_t index) const;
  // A rank publishes all groups of a run except those of its last step.
  std::uint64_t published_before_run() const { return (m_run_number - 1) * published_per_run(); }
  std::uint64_t published_per_run() const { return m_schedule.groups.size() - m_schedule.chunks; }
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }
  int previous() const { return (m_problem.rank - 1 + m_problem.size) % m_problem.size; }
};

}  // namespace isthmus::fused
