#include "operators/fused/host/scatter_plan.hpp"

#include <utility>

#include "operators/fused/host/costs.hpp"

namespace isthmus::fused {

host_scatter_plan::host_scatter_plan(std::shared_ptr<communicator> owner, const problem& what,
                                     const blas& library)
    : host_plan(std::move(owner), what, library) {
  settle(m_what.moved_bytes() * static_cast<std::uint64_t>(m_what.size - 1));
  if (m_what.size > 1 && !m_order.pipelined) m_workspace.resize(m_what.asked.m * row_bytes());
}

void host_scatter_plan::multiply(std::uint64_t first_row, std::uint64_t rows, const matrix_rows& to, float beta,
                                 const void* bias, const isthmus_fused_arguments& with) {
  const std::uint64_t lda = m_what.asked.lda;
  m_product.run(static_cast<const std::byte*>(with.a) + first_row * lda * m_what.input_bytes(), lda, rows,
                {to.first, to.leading}, {static_cast<float>(with.alpha), beta, bias});
}

// ---- sequential: the products of all rows, then the communicator's own reduce_scatter -----------------

void host_scatter_plan::run_sequential(const isthmus_fused_arguments& with) {
  if (with.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) compute_all(with);
  if (with.view != ISTHMUS_FUSED_COMPUTE_ONLY && m_what.size > 1) reduce_all(with);
}

void host_scatter_plan::compute_all(const isthmus_fused_arguments& with) {
  const traced slice(m_timeline, track::compute, [&] { return fmt::format("rows 0..{}", m_what.asked.m); });
  m_product.set_b(with.b);
  if (m_what.size == 1)
    return multiply(0, m_what.asked.m, {static_cast<std::byte*>(with.c), m_what.asked.ldc}, 0, with.bias, with);
  // Own rows get the bias, so that it is added once.
  for (int rank = 0; rank < m_what.size; ++rank) {
    const std::uint64_t row = static_cast<std::uint64_t>(rank) * m_what.shard_rows;
    multiply(row, m_what.shard_rows, {m_workspace.data() + row * row_bytes(), m_what.asked.n}, 0,
             rank == m_what.rank ? with.bias : nullptr, with);
  }
}

void host_scatter_plan::reduce_all(const isthmus_fused_arguments& with) {
  const traced slice(m_timeline, track::copy,
                     [&] { return std::string(isthmus_collective_name(m_what.collective())); });
  const bool dense = m_what.asked.ldc == m_what.asked.n;
  if (!dense) m_packed.resize(m_what.moved_bytes());
  isthmus_operation operation{};
  operation.collective = m_what.collective();
  operation.datatype = m_what.asked.output;
  operation.op = ISTHMUS_SUM;
  operation.count = m_what.shard_rows * m_what.asked.n;
  operation.send_buf = m_workspace.data();
  operation.recv_buf = dense ? with.c : m_packed.data();
  m_owner->enqueue(operation);
  if (!dense)
    copy_rows(m_packed.data(), row_bytes(), static_cast<std::byte*>(with.c),
              m_what.asked.ldc * m_what.output_bytes(), row_bytes(), m_what.shard_rows);
}

// ---- pipelined ----------------------------------------------------------------------------------------

std::byte* host_scatter_plan::staged_sums(int rank, std::size_t index) const {
  const std::uint64_t step = index / m_order.chunks;
  return m_counters->stage(rank) + step * m_what.moved_bytes() + m_order.groups[index].begin * row_bytes();
}

host_scatter_plan::matrix_rows host_scatter_plan::sums(std::size_t index,
                                                       const isthmus_fused_arguments& with) const {
  if (index < told_in_run()) return {staged_sums(m_what.rank, index), m_what.asked.n};
  return {
      static_cast<std::byte*>(with.c) + m_order.groups[index].begin * m_what.asked.ldc * m_what.output_bytes(),
      m_what.asked.ldc};
}

// The next rank may still be reading the sums of the run before.
void host_scatter_plan::make_room() { m_counters->wait_until_consumed(m_run - 1); }

void host_scatter_plan::compute_group(std::size_t index, const isthmus_fused_arguments& with) {
  const bool whole = with.view == ISTHMUS_FUSED_WHOLE;
  if (whole && index == 0) make_room();
  const row_group& each = m_order.groups[index];
  const bool last = index >= told_in_run();
  multiply(static_cast<std::uint64_t>(each.source) * m_what.shard_rows + each.begin, each.rows,
           sums(index, with), each.arrives ? 1.0f : 0.0f, last ? with.bias : nullptr, with);
  if (whole && !last) tell_next(index + 1);
}

void host_scatter_plan::tell_next(std::uint64_t groups) {
  m_counters->line(m_what.rank).ready.store(told_before() + groups, std::memory_order_release);
}

void host_scatter_plan::move(const isthmus_fused_arguments& with) {
  make_room();
  const bool alone =
      with.view == ISTHMUS_FUSED_COMMUNICATION_ONLY;  // nobody computes: what is there goes round
  if (alone) tell_next(m_order.chunks);
  for (std::size_t index = m_order.chunks; index < m_order.groups.size(); ++index) {
    const std::size_t source = index - m_order.chunks;  // the same rows, one step before, on the rank before
    const row_group& each = m_order.groups[index];
    m_counters->wait(previous(), m_counters->line(previous()).ready, told_before() + source + 1,
                     "to add its part");
    const traced slice(m_timeline, track::copy, [&] { return name_of(each); });
    const matrix_rows to = sums(index, with);
    copy_rows(staged_sums(previous(), source), row_bytes(), to.first, to.leading * m_what.output_bytes(),
              row_bytes(), each.rows);
    arrived(index + 1);
    if (alone && index < told_in_run()) tell_next(index + 1);
  }
  m_counters->line(m_what.rank).consumed.store(m_run, std::memory_order_release);
}

std::unique_ptr<plan> make_host_scatter_plan(std::shared_ptr<communicator> owner, const problem& what) {
  const blas& library = find_blas(*owner);
  return std::make_unique<host_scatter_plan>(std::move(owner), what, library);
}

}  // namespace isthmus::fused
