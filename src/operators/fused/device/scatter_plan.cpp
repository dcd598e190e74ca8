#include "operators/fused/device/scatter_plan.hpp"

#include "base/error.hpp"
#include "operators/fused/device/libraries.hpp"

namespace isthmus::fused {

device_scatter_plan::device_scatter_plan(std::shared_ptr<communicator> owner, const problem& what,
                                         device_driver& driver, const blaslt& library)
    : device_plan(std::move(owner), what, driver, library) {
  if (m_what.asked.ldc != m_what.asked.n)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("fused_plan_create: ldc = {} differs from n = {}", m_what.asked.ldc, m_what.asked.n),
        "on devices the C of GEMM_REDUCE_SCATTER is dense");
  settle(m_what.moved_bytes() * static_cast<std::uint64_t>(m_what.size - 1));
}

void device_scatter_plan::multiply(std::uint64_t first_row, std::uint64_t rows, std::byte* c, float beta,
                                   const void* bias, const isthmus_fused_arguments& with) {
  const std::uint64_t lda = m_what.asked.lda;
  m_product.enqueue(static_cast<const std::byte*>(with.a) + first_row * lda * m_what.input_bytes(), lda, rows,
                    with.b, c, {static_cast<float>(with.alpha), beta, bias}, with.stream);
}

void device_scatter_plan::enqueue_collective(const void* send, void* recv, native_stream stream) {
  isthmus_operation operation{};
  operation.collective = m_what.collective();
  operation.datatype = m_what.asked.output;
  operation.op = ISTHMUS_SUM;
  operation.count = m_what.shard_rows * m_what.asked.n;
  operation.send_buf = send;
  operation.recv_buf = recv;
  operation.stream = stream;
  m_owner->enqueue(operation);
}

// The products of all rows, then the communicator's own reduce_scatter.
void device_scatter_plan::enqueue_sequential(const isthmus_fused_arguments& with) {
  if (m_what.size == 1) {
    if (with.view != ISTHMUS_FUSED_COMMUNICATION_ONLY)
      multiply(0, m_what.asked.m, static_cast<std::byte*>(with.c), 0, with.bias, with);
    return;
  }
  if (with.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) enqueue_products(with);
  if (with.view != ISTHMUS_FUSED_COMPUTE_ONLY) enqueue_collective(workspace(), with.c, with.stream);
}

// One product, or three where only the own rows get a bias: it must be added once.
void device_scatter_plan::enqueue_products(const isthmus_fused_arguments& with) {
  if (with.bias == nullptr) return multiply(0, m_what.asked.m, workspace(), 0, nullptr, with);
  const std::uint64_t begin = static_cast<std::uint64_t>(m_what.rank) * m_what.shard_rows,
                      end = begin + m_what.shard_rows;
  multiply(0, begin, workspace(), 0, nullptr, with);
  multiply(begin, m_what.shard_rows, workspace() + begin * row_bytes(), 0, with.bias, with);
  multiply(end, m_what.asked.m - end, workspace() + end * row_bytes(), 0, nullptr, with);
}

// The steps in order, each with its copies before its products: where streams share a queue, everything that a
// command waits for stands before it on the rank that it comes from.
void device_scatter_plan::enqueue_pipelined(const isthmus_fused_arguments& with) {
  const bool moves = with.view != ISTHMUS_FUSED_COMPUTE_ONLY;
  if (moves)
    for (const native_stream stream : {m_signal.stream.get(), m_copy.stream.get()})
      m_driver.wait(m_device, stream, m_start);
  const bool alone =
      with.view == ISTHMUS_FUSED_COMMUNICATION_ONLY;  // nobody computes: what is there goes round
  if (alone) tell_next(m_order.chunks);
  for (int step = 0; step < m_what.size; ++step) {
    if (moves && step > 0) pull_step(step, with);
    if (!alone) compute_step(step, with);
  }
  if (!moves) return;
  m_driver.write_word(m_device, m_shared->done(previous(), m_what.rank), m_run, m_copy.stream);
  join_side_streams(with.stream);
  // The next run writes where the next rank reads in this one.
  m_driver.wait_word(m_device, m_shared->done(m_what.rank, next()), m_run, with.stream);
}

std::uint32_t device_scatter_plan::chunks_before() const {
  return (m_run - 1) * static_cast<std::uint32_t>(m_what.size - 1) * m_order.chunks;
}

void device_scatter_plan::tell_next(std::uint32_t chunks) {
  m_driver.write_word(m_device, m_shared->ready(next(), m_what.rank), chunks_before() + chunks,
                      m_signal.stream);
}

// Once the group's event has passed.
void device_scatter_plan::tell_of(std::size_t group) {
  m_driver.wait(m_device, m_signal.stream, m_group_events[group]);
  tell_next(static_cast<std::uint32_t>(group) + 1);
}

std::byte* device_scatter_plan::sums(int step, const isthmus_fused_arguments& with) const {
  if (step + 1 == m_what.size) return static_cast<std::byte*>(with.c);
  return m_shared->stage(m_what.rank) + static_cast<std::uint64_t>(step) * m_what.moved_bytes();
}

void device_scatter_plan::pull_step(int step, const isthmus_fused_arguments& with) {
  const std::byte* from =
      m_shared->stage(previous()) + static_cast<std::uint64_t>(step - 1) * m_what.moved_bytes();
  for (std::uint32_t chunk = 0; chunk < m_order.chunks; ++chunk) {
    const std::size_t index = first_group(step) + chunk;
    const row_group& each = m_order.groups[index];
    m_driver.wait_word(m_device, m_shared->ready(m_what.rank, previous()),
                       chunks_before() + static_cast<std::uint32_t>(step - 1) * m_order.chunks + chunk + 1,
                       m_copy.stream);
    note_time(&group_times::copy_begin, index, m_copy.stream);
    copy(sums(step, with) + each.begin * row_bytes(), from + each.begin * row_bytes(), each.rows * row_bytes(),
         m_copy.stream);
    note_time(&group_times::copy_end, index, m_copy.stream);
    m_driver.record(m_device, m_group_events[index], m_copy.stream);
    if (with.view == ISTHMUS_FUSED_COMMUNICATION_ONLY && step + 1 < m_what.size) tell_of(index);
  }
}

void device_scatter_plan::compute_step(int step, const isthmus_fused_arguments& with) {
  const bool whole = with.view == ISTHMUS_FUSED_WHOLE, last = step + 1 == m_what.size;
  for (std::uint32_t chunk = 0; chunk < m_order.chunks; ++chunk) {
    const std::size_t index = first_group(step) + chunk;
    const row_group& each = m_order.groups[index];
    if (whole && step > 0) m_driver.wait(m_device, with.stream, m_group_events[index]);
    note_time(&group_times::product_begin, index, with.stream);
    multiply(static_cast<std::uint64_t>(each.source) * m_what.shard_rows + each.begin, each.rows,
             sums(step, with) + each.begin * row_bytes(), step > 0 ? 1.0f : 0.0f, last ? with.bias : nullptr,
             with);
    note_time(&group_times::product_end, index, with.stream);
    if (!whole || last) continue;
    // The chunk's event marks its arrival until here, and from now on that it may be fetched.
    m_driver.record(m_device, m_group_events[index], with.stream);
    tell_of(index);
  }
}

std::unique_ptr<plan> make_device_scatter_plan(std::shared_ptr<communicator> owner, const problem& what) {
  const device_libraries found = find_device_libraries(*owner);
  return std::make_unique<device_scatter_plan>(std::move(owner), what, found.driver, found.blas);
}

}  // namespace isthmus::fused
