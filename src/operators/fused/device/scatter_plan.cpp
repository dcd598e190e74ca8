// GEMM_REDUCE_SCATTER on devices. The partial sum of each rank's rows travels around the ring, from the next
// rank to the rank itself. Every rank adds its product to the partial sums that copy engines have pulled from
// the previous rank. A chunk is copied while the previous chunk is multiplied.

#include "base/error.hpp"
#include "operators/fused/device/plan.hpp"

namespace isthmus::fused {

class device_scatter_plan : public device_plan {
 public:
  device_scatter_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);

 private:
  void enqueue_sequential(const isthmus_fused_arguments& arguments) override;
  void enqueue_pipelined(const isthmus_fused_arguments& arguments) override;
  void enqueue_products(const isthmus_fused_arguments& arguments);
  void pull_step(int step, const isthmus_fused_arguments& arguments);
  void compute_step(int step, const isthmus_fused_arguments& arguments);
  void publish_chunks(std::uint32_t chunks);
  void publish_group(std::size_t group);
  void multiply(std::uint64_t first_row, std::uint64_t rows, std::byte* c, float beta, const void* bias,
                const isthmus_fused_arguments& arguments);
  std::size_t first_group(int step) const { return static_cast<std::size_t>(step) * m_schedule.chunks; }
  // This rank's partial sums of a step: on its stage, which the next rank reads, or in C in the last step.
  std::byte* sums(int step, const isthmus_fused_arguments& arguments) const;
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }
  // Number of chunks that a rank has published in earlier runs.
  std::uint32_t chunks_before() const;
};

device_scatter_plan::device_scatter_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : device_plan(std::move(owner), problem) {
  if (m_problem.description.ldc != m_problem.description.n)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("fused_plan_create: ldc = {} differs from n = {}", m_problem.description.ldc,
                                 m_problem.description.n),
                     "set ldc = n: the C of GEMM_REDUCE_SCATTER is dense on devices");
  finish_setup(m_problem.moved_bytes() * static_cast<std::uint64_t>(m_problem.size - 1));
}

void device_scatter_plan::multiply(std::uint64_t first_row, std::uint64_t rows, std::byte* c, float beta,
                                   const void* bias, const isthmus_fused_arguments& arguments) {
  const std::uint64_t lda = m_problem.description.lda;
  m_product.enqueue(static_cast<const std::byte*>(arguments.a) + first_row * lda * m_problem.input_bytes(), lda,
                    rows, arguments.b, c, {static_cast<float>(arguments.alpha), beta, bias}, arguments.stream);
}

// Computes the products of all rows, then runs the communicator's reduce_scatter.
void device_scatter_plan::enqueue_sequential(const isthmus_fused_arguments& arguments) {
  if (m_problem.size == 1) {
    if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY)
      multiply(0, m_problem.description.m, static_cast<std::byte*>(arguments.c), 0, arguments.bias, arguments);
    return;
  }
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) enqueue_products(arguments);
  if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY)
    enqueue_collective(workspace(), arguments.c, arguments.stream);
}

// One product, or three if there is a bias: it must be added only once, so only this rank's own rows get it.
void device_scatter_plan::enqueue_products(const isthmus_fused_arguments& arguments) {
  if (arguments.bias == nullptr)
    return multiply(0, m_problem.description.m, workspace(), 0, nullptr, arguments);
  const std::uint64_t begin = static_cast<std::uint64_t>(m_problem.rank) * m_problem.shard_rows,
                      end = begin + m_problem.shard_rows;
  multiply(0, begin, workspace(), 0, nullptr, arguments);
  multiply(begin, m_problem.shard_rows, workspace() + begin * row_bytes(), 0, arguments.bias, arguments);
  multiply(end, m_problem.description.m - end, workspace() + end * row_bytes(), 0, nullptr, arguments);
}

// Enqueues the steps in order, the copies of each step before its products. Even if streams share a hardware
// queue, everything that a command waits for is then enqueued before it on the rank that provides it.
void device_scatter_plan::enqueue_pipelined(const isthmus_fused_arguments& arguments) {
  const bool is_communicating = arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY;
  if (is_communicating)
    for (const native_stream stream : {m_signal.stream.get(), m_copy.stream.get()})
      m_driver.wait(m_device, stream, m_start);
  // Without products, the existing data is passed along.
  const bool is_communication_only = arguments.view == ISTHMUS_FUSED_COMMUNICATION_ONLY;
  if (is_communication_only) publish_chunks(m_schedule.chunks);
  for (int step = 0; step < m_problem.size; ++step) {
    if (is_communicating && step > 0) pull_step(step, arguments);
    if (!is_communication_only) compute_step(step, arguments);
  }
  if (!is_communicating) return;
  m_driver.write_word(m_device, m_shared->done(m_problem.previous(), m_problem.rank), m_run_number,
                      m_copy.stream);
  join_side_streams(arguments.stream);
  // The next run overwrites memory that the next rank reads in this run.
  m_driver.wait_word(m_device, m_shared->done(m_problem.rank, m_problem.next()), m_run_number,
                     arguments.stream);
}

std::uint32_t device_scatter_plan::chunks_before() const {
  return (m_run_number - 1) * static_cast<std::uint32_t>(m_problem.size - 1) * m_schedule.chunks;
}

void device_scatter_plan::publish_chunks(std::uint32_t chunks) {
  m_driver.write_word(m_device, m_shared->ready(m_problem.next(), m_problem.rank), chunks_before() + chunks,
                      m_signal.stream);
}

// Takes effect when the group's event has completed.
void device_scatter_plan::publish_group(std::size_t group) {
  m_driver.wait(m_device, m_signal.stream, m_group_events[group]);
  publish_chunks(static_cast<std::uint32_t>(group) + 1);
}

std::byte* device_scatter_plan::sums(int step, const isthmus_fused_arguments& arguments) const {
  if (step + 1 == m_problem.size) return static_cast<std::byte*>(arguments.c);
  return m_shared->stage(m_problem.rank) + static_cast<std::uint64_t>(step) * m_problem.moved_bytes();
}

void device_scatter_plan::pull_step(int step, const isthmus_fused_arguments& arguments) {
  const std::byte* from =
      m_shared->stage(m_problem.previous()) + static_cast<std::uint64_t>(step - 1) * m_problem.moved_bytes();
  for (std::uint32_t chunk = 0; chunk < m_schedule.chunks; ++chunk) {
    const std::size_t index = first_group(step) + chunk;
    const row_group& group = m_schedule.groups[index];
    m_driver.wait_word(m_device, m_shared->ready(m_problem.rank, m_problem.previous()),
                       chunks_before() + static_cast<std::uint32_t>(step - 1) * m_schedule.chunks + chunk + 1,
                       m_copy.stream);
    record_time(&group_times::copy_begin, index, m_copy.stream);
    copy(sums(step, arguments) + group.begin * row_bytes(), from + group.begin * row_bytes(),
         group.rows * row_bytes(), m_copy.stream);
    record_time(&group_times::copy_end, index, m_copy.stream);
    m_driver.record(m_device, m_group_events[index], m_copy.stream);
    if (arguments.view == ISTHMUS_FUSED_COMMUNICATION_ONLY && step + 1 < m_problem.size) publish_group(index);
  }
}

void device_scatter_plan::compute_step(int step, const isthmus_fused_arguments& arguments) {
  const bool is_whole_run = arguments.view == ISTHMUS_FUSED_WHOLE, is_last_step = step + 1 == m_problem.size;
  for (std::uint32_t chunk = 0; chunk < m_schedule.chunks; ++chunk) {
    const std::size_t index = first_group(step) + chunk;
    const row_group& group = m_schedule.groups[index];
    if (is_whole_run && step > 0) m_driver.wait(m_device, arguments.stream, m_group_events[index]);
    record_time(&group_times::product_begin, index, arguments.stream);
    multiply(static_cast<std::uint64_t>(group.source) * m_problem.shard_rows + group.begin, group.rows,
             sums(step, arguments) + group.begin * row_bytes(), step > 0 ? 1.0f : 0.0f,
             is_last_step ? arguments.bias : nullptr, arguments);
    record_time(&group_times::product_end, index, arguments.stream);
    if (!is_whole_run || is_last_step) continue;
    // Until here the chunk's event marks its arrival. From now on it marks that the chunk can be fetched.
    m_driver.record(m_device, m_group_events[index], arguments.stream);
    publish_group(index);
  }
}

std::unique_ptr<plan> make_device_scatter_plan(std::shared_ptr<communicator> owner,
                                               const fused_problem& problem) {
  return std::make_unique<device_scatter_plan>(std::move(owner), problem);
}

}  // namespace isthmus::fused
