// GEMM_REDUCE_SCATTER on the host. The partial sum of each rank's rows travels around the ring, from the next
// rank to the rank itself. The copy thread fetches the partial sums of the previous rank in chunks. The calling
// thread adds its products to them.

#include <utility>

#include "operators/fused/host/plan.hpp"

namespace isthmus::fused {

class host_scatter_plan : public host_plan {
 public:
  host_scatter_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);

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
};

host_scatter_plan::host_scatter_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : host_plan(std::move(owner), problem) {
  finish_setup(m_problem.moved_bytes() * static_cast<std::uint64_t>(m_problem.size - 1));
  if (m_problem.size > 1 && !m_schedule.is_pipelined) m_workspace.resize(m_problem.description.m * row_bytes());
}

void host_scatter_plan::multiply(std::uint64_t first_row, std::uint64_t rows, const matrix_rows& to, float beta,
                                 const void* bias, const isthmus_fused_arguments& arguments) {
  const std::uint64_t lda = m_problem.description.lda;
  m_product.run(static_cast<const std::byte*>(arguments.a) + first_row * lda * m_problem.input_bytes(), lda,
                rows, {to.first, to.leading}, {static_cast<float>(arguments.alpha), beta, bias});
}

// ---- sequential: products of all rows, then the communicator's reduce_scatter ----------------------------

void host_scatter_plan::run_sequential(const isthmus_fused_arguments& arguments) {
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) compute_all(arguments);
  if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY && m_problem.size > 1) reduce_all(arguments);
}

void host_scatter_plan::compute_all(const isthmus_fused_arguments& arguments) {
  const scoped_trace slice(m_timeline, trace_track::compute,
                           [&] { return fmt::format("rows 0..{}", m_problem.description.m); });
  m_product.set_b(arguments.b);
  if (m_problem.size == 1)
    return multiply(0, m_problem.description.m,
                    {static_cast<std::byte*>(arguments.c), m_problem.description.ldc}, 0, arguments.bias,
                    arguments);
  // Only this rank's own rows get the bias, so that it is added once.
  for (int rank = 0; rank < m_problem.size; ++rank) {
    const std::uint64_t row = static_cast<std::uint64_t>(rank) * m_problem.shard_rows;
    multiply(row, m_problem.shard_rows, {m_workspace.data() + row * row_bytes(), m_problem.description.n}, 0,
             rank == m_problem.rank ? arguments.bias : nullptr, arguments);
  }
}

void host_scatter_plan::reduce_all(const isthmus_fused_arguments& arguments) {
  const scoped_trace slice(m_timeline, trace_track::copy,
                           [&] { return std::string(isthmus_collective_name(m_problem.collective())); });
  const bool is_dense = m_problem.description.ldc == m_problem.description.n;
  if (!is_dense) m_packed.resize(m_problem.moved_bytes());
  enqueue_collective(m_workspace.data(), is_dense ? arguments.c : m_packed.data(), nullptr);
  if (!is_dense)
    copy_rows(m_packed.data(), row_bytes(), static_cast<std::byte*>(arguments.c),
              m_problem.description.ldc * m_problem.output_bytes(), row_bytes(), m_problem.shard_rows);
}

// ---- pipelined ----------------------------------------------------------------------------------------

std::byte* host_scatter_plan::staged_sums(int rank, std::size_t index) const {
  const std::uint64_t step = index / m_schedule.chunks;
  return m_counters->stage(rank) + step * m_problem.moved_bytes() +
         m_schedule.groups[index].begin * row_bytes();
}

host_scatter_plan::matrix_rows host_scatter_plan::sums(std::size_t index,
                                                       const isthmus_fused_arguments& arguments) const {
  if (index < published_per_run()) return {staged_sums(m_problem.rank, index), m_problem.description.n};
  return {static_cast<std::byte*>(arguments.c) +
              m_schedule.groups[index].begin * m_problem.description.ldc * m_problem.output_bytes(),
          m_problem.description.ldc};
}

// The next rank may still be reading the sums of the previous run.
void host_scatter_plan::wait_for_stage() { m_counters->wait_until_consumed(m_run_number - 1); }

void host_scatter_plan::compute_group(std::size_t index, const isthmus_fused_arguments& arguments) {
  const bool is_whole_run = arguments.view == ISTHMUS_FUSED_WHOLE;
  if (is_whole_run && index == 0) wait_for_stage();
  const row_group& group = m_schedule.groups[index];
  const bool is_last_step = index >= published_per_run();
  multiply(static_cast<std::uint64_t>(group.source) * m_problem.shard_rows + group.begin, group.rows,
           sums(index, arguments), group.waits_for_chunk ? 1.0f : 0.0f, is_last_step ? arguments.bias : nullptr,
           arguments);
  if (is_whole_run && !is_last_step) publish_groups(index + 1);
}

void host_scatter_plan::publish_groups(std::uint64_t groups) {
  m_counters->line(m_problem.rank).ready.store(published_before_run() + groups, std::memory_order_release);
}

void host_scatter_plan::run_copies(const isthmus_fused_arguments& arguments) {
  wait_for_stage();
  // In communication-only mode, ranks forward the current contents of the staging memory.
  const bool is_communication_only = arguments.view == ISTHMUS_FUSED_COMMUNICATION_ONLY;
  if (is_communication_only) publish_groups(m_schedule.chunks);
  for (std::size_t index = m_schedule.chunks; index < m_schedule.groups.size(); ++index) {
    // the same rows in the previous step, on the previous rank
    const std::size_t source_index = index - m_schedule.chunks;
    const row_group& group = m_schedule.groups[index];
    m_counters->wait(m_problem.previous(), m_counters->line(m_problem.previous()).ready,
                     published_before_run() + source_index + 1, "to add its part");
    const scoped_trace slice(m_timeline, trace_track::copy, [&] { return name_of(group); });
    const matrix_rows to = sums(index, arguments);
    copy_rows(staged_sums(m_problem.previous(), source_index), row_bytes(), to.first,
              to.leading * m_problem.output_bytes(), row_bytes(), group.rows);
    set_arrived_groups(index + 1);
    if (is_communication_only && index < published_per_run()) publish_groups(index + 1);
  }
  m_counters->line(m_problem.rank).consumed_runs.store(m_run_number, std::memory_order_release);
}

std::unique_ptr<plan> make_host_scatter_plan(std::shared_ptr<communicator> owner,
                                             const fused_problem& problem) {
  return std::make_unique<host_scatter_plan>(std::move(owner), problem);
}

}  // namespace isthmus::fused
