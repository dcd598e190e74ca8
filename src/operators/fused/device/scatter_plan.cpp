// GEMM_REDUCE_SCATTER on devices. The partial sum of each rank's rows travels around the ring, from the next
// rank to the rank itself. Every rank adds its product to the partial sums that the previous rank has pushed into its
// buffer. A chunk is pushed while the next chunk is multiplied.

#include <vector>

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
  void enqueue_group(std::size_t index, const isthmus_fused_arguments& arguments);
  void multiply_group(std::size_t index, const isthmus_fused_arguments& arguments);
  void push_group(std::size_t index, native_stream stream);
  void multiply(std::uint64_t first_row, std::uint64_t rows, const std::byte* addend, std::byte* c,
                const void* bias, const isthmus_fused_arguments& arguments);
  int step_of(std::size_t index) const { return static_cast<int>(index / m_schedule.chunks); }
  bool is_last_step(std::size_t index) const { return step_of(index) + 1 == m_problem.size; }
  // The partial sums of a group in the buffer of `rank`, which has room for the sums of each step.
  std::byte* sums(int rank, int step, const row_group& group) const {
    return m_shared->buffer(rank) + static_cast<std::uint64_t>(step) * m_problem.moved_bytes() +
           group.begin * row_bytes();
  }
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }

  std::vector<owned_event> m_product_ends;  // by group
};

device_scatter_plan::device_scatter_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : device_plan(std::move(owner), problem) {
  if (m_problem.description.ldc != m_problem.description.n)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("fused_plan_create: ldc = {} differs from n = {}", m_problem.description.ldc,
                                 m_problem.description.n),
                     "set ldc = n: the C of GEMM_REDUCE_SCATTER is dense on devices");
  finish_setup(m_problem.moved_bytes() * static_cast<std::uint64_t>(m_problem.size),
               {{m_problem.previous()}, {m_problem.next()}});
  if (m_schedule.is_pipelined)
    for (std::size_t index = 0; index < m_schedule.groups.size(); ++index)
      m_product_ends.emplace_back(m_driver, m_device);
}

// C = alpha A B + addend + bias. addend: null, or of the size of C.
void device_scatter_plan::multiply(std::uint64_t first_row, std::uint64_t rows, const std::byte* addend,
                                   std::byte* c, const void* bias, const isthmus_fused_arguments& arguments) {
  const std::uint64_t lda = m_problem.description.lda;
  m_product.enqueue(static_cast<const std::byte*>(arguments.a) + first_row * lda * m_problem.input_bytes(), lda,
                    rows, arguments.b, addend != nullptr ? addend : c, c,
                    {static_cast<float>(arguments.alpha), addend != nullptr ? 1.0f : 0.0f, bias},
                    arguments.stream);
}

// Computes the products of all rows, then runs the communicator's reduce_scatter.
void device_scatter_plan::enqueue_sequential(const isthmus_fused_arguments& arguments) {
  if (m_problem.size == 1) {
    if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY)
      multiply(0, m_problem.description.m, nullptr, static_cast<std::byte*>(arguments.c), arguments.bias,
               arguments);
    return;
  }
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) enqueue_products(arguments);
  if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY)
    enqueue_collective(workspace(), arguments.c, arguments.stream);
}

// One product, or three if there is a bias: it must be added only once, so only this rank's own rows get it.
void device_scatter_plan::enqueue_products(const isthmus_fused_arguments& arguments) {
  if (arguments.bias == nullptr)
    return multiply(0, m_problem.description.m, nullptr, workspace(), nullptr, arguments);
  const std::uint64_t begin = static_cast<std::uint64_t>(m_problem.rank) * m_problem.shard_rows,
                      end = begin + m_problem.shard_rows;
  multiply(0, begin, nullptr, workspace(), nullptr, arguments);
  multiply(begin, m_problem.shard_rows, nullptr, workspace() + begin * row_bytes(), arguments.bias, arguments);
  multiply(end, m_problem.description.m - end, nullptr, workspace() + end * row_bytes(), nullptr, arguments);
}

// Enqueues the groups in order, and pushes each one after its product. Even if streams share a hardware queue,
// everything that a command waits for is then enqueued before it on the rank that provides it.
void device_scatter_plan::enqueue_pipelined(const isthmus_fused_arguments& arguments) {
  if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY) wait_for_room();
  for (std::size_t index = 0; index < m_schedule.groups.size(); ++index) enqueue_group(index, arguments);
}

// Without products, the existing sums are passed along.
void device_scatter_plan::enqueue_group(std::size_t index, const isthmus_fused_arguments& arguments) {
  const bool is_communicating = arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY;
  if (is_communicating && step_of(index) > 0) {
    receive_chunk(m_problem.previous(), static_cast<std::uint32_t>(index + 1) - m_schedule.chunks, index);
    wait_for_chunk(index, arguments.stream);
  }
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) multiply_group(index, arguments);
  if (is_communicating && !is_last_step(index)) push_group(index, arguments.stream);
}

void device_scatter_plan::multiply_group(std::size_t index, const isthmus_fused_arguments& arguments) {
  const row_group& group = m_schedule.groups[index];
  // Peers push the sums of later steps. A run that only computes must not change them.
  const bool is_compute_only = arguments.view == ISTHMUS_FUSED_COMPUTE_ONLY;
  const std::byte* received_sums = sums(m_problem.rank, step_of(index), group);
  std::byte* partial_sums = sums(m_problem.rank, is_compute_only ? 0 : step_of(index), group);
  std::byte* c = static_cast<std::byte*>(arguments.c) + group.begin * row_bytes();
  record_time(&group_times::product_begin, index, arguments.stream);
  multiply(static_cast<std::uint64_t>(group.source) * m_problem.shard_rows + group.begin, group.rows,
           step_of(index) > 0 ? received_sums : nullptr, is_last_step(index) ? c : partial_sums,
           is_last_step(index) ? arguments.bias : nullptr, arguments);
  record_time(&group_times::product_end, index, arguments.stream);
}

// Pushes the sums of a group when `stream` has computed them. The next rank uses them one step later.
void device_scatter_plan::push_group(std::size_t index, native_stream stream) {
  m_driver.record(m_device, m_product_ends[index], stream);
  m_driver.wait(m_device, m_copy.stream, m_product_ends[index]);
  const row_group& group = m_schedule.groups[index];
  const int step = step_of(index);
  push_chunk(m_problem.next(), static_cast<std::uint32_t>(index) + 1, sums(m_problem.next(), step + 1, group),
             sums(m_problem.rank, step, group), index);
}

std::unique_ptr<plan> make_device_scatter_plan(std::shared_ptr<communicator> owner,
                                               const fused_problem& problem) {
  return std::make_unique<device_scatter_plan>(std::move(owner), problem);
}

}  // namespace isthmus::fused
