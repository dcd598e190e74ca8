// ALLGATHER_GEMM on devices. Copy engines pull the peers' rows in chunks from the symmetric heap, while the
// rank multiplies its own rows.

#include "base/error.hpp"
#include "operators/fused/device/plan.hpp"

namespace isthmus::fused {
namespace {

// Number of steps in which a stage is published. Peers fetch the first step while later ones are being copied.
constexpr std::uint32_t stage_steps = 4;

}  // namespace

class device_gather_plan : public device_plan {
 public:
  device_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);

 private:
  void enqueue_sequential(const isthmus_fused_arguments& arguments) override;
  void enqueue_pipelined(const isthmus_fused_arguments& arguments) override;
  void publish(const isthmus_fused_arguments& arguments);
  void pull(const isthmus_fused_arguments& arguments);
  void pull_group(std::size_t index, const std::byte* base);
  void compute(const isthmus_fused_arguments& arguments);
  void multiply(const void* a, std::uint64_t first_row, std::uint64_t rows,
                const isthmus_fused_arguments& arguments);
  std::byte* gathered(const isthmus_fused_arguments& arguments);
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }
  std::uint64_t stage_step_end(std::uint32_t step) const;

  std::byte* m_gathered = nullptr;
};

device_gather_plan::device_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : device_plan(std::move(owner), problem) {
  if (m_problem.description.lda != m_problem.description.k)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("fused_plan_create: lda = {} differs from k = {}", m_problem.description.lda,
                                 m_problem.description.k),
                     "set lda = k: the gathered A is dense on devices");
  finish_setup(m_problem.moved_bytes());
}

std::byte* device_gather_plan::gathered(const isthmus_fused_arguments& arguments) {
  return arguments.gathered_a != nullptr ? static_cast<std::byte*>(arguments.gathered_a) : workspace();
}

void device_gather_plan::multiply(const void* a, std::uint64_t first_row, std::uint64_t rows,
                                  const isthmus_fused_arguments& arguments) {
  m_product.enqueue(
      a, m_problem.description.k, rows, arguments.b,
      static_cast<std::byte*>(arguments.c) + first_row * m_problem.description.ldc * m_problem.output_bytes(),
      {static_cast<float>(arguments.alpha), static_cast<float>(arguments.beta), arguments.bias},
      arguments.stream);
}

// Runs the communicator's allgather, then one product.
void device_gather_plan::enqueue_sequential(const isthmus_fused_arguments& arguments) {
  const void* a = arguments.a;
  if (m_problem.size > 1 || arguments.gathered_a != nullptr) {
    m_gathered = gathered(arguments);
    a = m_gathered;
    if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY && m_problem.size == 1) {
      if (arguments.a != arguments.gathered_a)
        copy(m_gathered, arguments.a, m_problem.moved_bytes(), arguments.stream);
    } else if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY) {
      enqueue_collective(arguments.a, m_gathered, arguments.stream);
    }
  }
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) multiply(a, 0, m_problem.description.m, arguments);
}

// The run ends when all rows have arrived and no peer reads this rank's rows any longer.
void device_gather_plan::enqueue_pipelined(const isthmus_fused_arguments& arguments) {
  m_gathered = gathered(arguments);
  const bool is_communicating = arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY;
  if (is_communicating) {
    // Publish before the copies, which wait for peers: streams that share a hardware queue must not delay what
    // peers wait for.
    publish(arguments);
    pull(arguments);
  }
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) compute(arguments);
  if (!is_communicating) return;
  join_side_streams(arguments.stream);
  for (int peer = 0; peer < m_problem.size; ++peer)
    if (peer != m_problem.rank)
      m_driver.wait_word(m_device, m_shared->done(m_problem.rank, peer), m_run_number, arguments.stream);
}

std::uint64_t device_gather_plan::stage_step_end(std::uint32_t step) const {
  return m_problem.shard_rows * (step + 1) / stage_steps;
}

// Publishes to every peer how many steps of this rank's rows it may fetch.
void device_gather_plan::publish(const isthmus_fused_arguments& arguments) {
  m_driver.wait(m_device, m_signal.stream, m_start);
  isthmus_heap_block block{};
  m_is_staged = !m_owner->heap().find(arguments.a, m_problem.moved_bytes(), &block, nullptr);
  const std::uint32_t first_step = (m_run_number - 1) * stage_steps;
  const auto publish_steps = [&](std::uint32_t steps) {
    for (int step = 1; step < m_problem.size; ++step) {
      const int peer = (m_problem.rank - step + m_problem.size) % m_problem.size;
      m_driver.write_word(m_device, m_shared->ready(peer, m_problem.rank), first_step + steps, m_signal.stream);
    }
  };
  if (!m_is_staged) return publish_steps(stage_steps);
  const auto* a = static_cast<const std::byte*>(arguments.a);
  std::uint64_t begin = 0;
  for (std::uint32_t step = 0; step < stage_steps; ++step) {
    const std::uint64_t end = stage_step_end(step);
    copy(m_shared->stage(m_problem.rank) + begin * row_bytes(), a + begin * row_bytes(),
         (end - begin) * row_bytes(), m_signal.stream);
    begin = end;
    publish_steps(step + 1);
  }
}

void device_gather_plan::pull(const isthmus_fused_arguments& arguments) {
  m_driver.wait(m_device, m_copy.stream, m_start);
  isthmus_heap_block block{};
  std::uint64_t offset = 0;
  if (!m_is_staged) m_owner->heap().find(arguments.a, m_problem.moved_bytes(), &block, &offset);
  // All ranks start together, so that each source has one reader at a time. Two readers of one source would
  // share its port, and ranks that are out of step stay out of step.
  for (int peer = 0; peer < m_problem.size; ++peer)
    if (peer != m_problem.rank)
      m_driver.wait_word(m_device, m_shared->ready(m_problem.rank, peer), (m_run_number - 1) * stage_steps + 1,
                         m_copy.stream);
  for (std::size_t index = 1; index < m_schedule.groups.size(); ++index) {
    const int source = m_schedule.groups[index].source;
    pull_group(index, m_is_staged ? m_shared->stage(source)
                                  : static_cast<const std::byte*>(block.peers[source]) + offset);
    const bool is_last_group =
        index + 1 == m_schedule.groups.size() || m_schedule.groups[index + 1].source != source;
    if (is_last_group)
      m_driver.write_word(m_device, m_shared->done(source, m_problem.rank), m_run_number, m_copy.stream);
  }
  std::byte* own_rows = m_gathered + static_cast<std::uint64_t>(m_problem.rank) * m_problem.moved_bytes();
  if (arguments.gathered_a != nullptr && arguments.a != own_rows)
    copy(own_rows, arguments.a, m_problem.moved_bytes(), m_copy.stream);
}

void device_gather_plan::pull_group(std::size_t index, const std::byte* base) {
  const row_group& group = m_schedule.groups[index];
  std::uint32_t step = 0;
  while (stage_step_end(step) < group.begin + group.rows) ++step;
  m_driver.wait_word(m_device, m_shared->ready(m_problem.rank, group.source),
                     (m_run_number - 1) * stage_steps + step + 1, m_copy.stream);
  record_time(&group_times::copy_begin, index, m_copy.stream);
  const std::uint64_t row = static_cast<std::uint64_t>(group.source) * m_problem.shard_rows + group.begin;
  copy(m_gathered + row * row_bytes(), base + group.begin * row_bytes(), group.rows * row_bytes(),
       m_copy.stream);
  record_time(&group_times::copy_end, index, m_copy.stream);
  m_driver.record(m_device, m_group_events[index], m_copy.stream);
}

void device_gather_plan::compute(const isthmus_fused_arguments& arguments) {
  const bool is_whole_run = arguments.view == ISTHMUS_FUSED_WHOLE;
  for (std::size_t index = 0; index < m_schedule.groups.size(); ++index) {
    const row_group& group = m_schedule.groups[index];
    const bool is_own = group.source == m_problem.rank;
    const std::uint64_t row = static_cast<std::uint64_t>(group.source) * m_problem.shard_rows + group.begin;
    if (!is_own && is_whole_run) m_driver.wait(m_device, arguments.stream, m_group_events[index]);
    record_time(&group_times::product_begin, index, arguments.stream);
    multiply(is_own ? arguments.a : m_gathered + row * row_bytes(), row, group.rows, arguments);
    record_time(&group_times::product_end, index, arguments.stream);
  }
}

std::unique_ptr<plan> make_device_gather_plan(std::shared_ptr<communicator> owner,
                                              const fused_problem& problem) {
  return std::make_unique<device_gather_plan>(std::move(owner), problem);
}

}  // namespace isthmus::fused
