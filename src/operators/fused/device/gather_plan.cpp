#include "operators/fused/device/gather_plan.hpp"

#include "base/error.hpp"
#include "operators/fused/device/libraries.hpp"

namespace isthmus::fused {
namespace {

// A stage is published in so many steps: peers fetch the first while the last is still being copied.
constexpr std::uint32_t stage_steps = 4;

}  // namespace

device_gather_plan::device_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem,
                                       device_driver& driver, const blaslt& library)
    : device_plan(std::move(owner), problem, driver, library) {
  if (m_problem.description.lda != m_problem.description.k)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("fused_plan_create: lda = {} differs from k = {}", m_problem.description.lda, m_problem.description.k),
        "on devices the gathered A is dense");
  finish_setup(m_problem.shard_bytes());
}

std::byte* device_gather_plan::gathered(const isthmus_fused_arguments& arguments) {
  return arguments.gathered_a != nullptr ? static_cast<std::byte*>(arguments.gathered_a) : workspace();
}

void device_gather_plan::multiply(const void* a, std::uint64_t first_row, std::uint64_t rows,
                                  const isthmus_fused_arguments& arguments) {
  m_product.enqueue(a, m_problem.description.k, rows, arguments.b,
                    static_cast<std::byte*>(arguments.c) + first_row * m_problem.description.ldc * m_problem.output_bytes(),
                    {static_cast<float>(arguments.alpha), static_cast<float>(arguments.beta), arguments.bias}, arguments.stream);
}

void device_gather_plan::enqueue_collective(const void* send, void* recv, native_stream stream) {
  isthmus_operation operation{};
  operation.collective = m_problem.collective();
  operation.datatype = m_problem.description.input;
  operation.count = m_problem.shard_rows * m_problem.description.k;
  operation.send_buf = send;
  operation.recv_buf = recv;
  operation.stream = stream;
  m_owner->enqueue(operation);
}

// The communicator's own allgather, then one product.
void device_gather_plan::enqueue_sequential(const isthmus_fused_arguments& arguments) {
  const void* a = arguments.a;
  if (m_problem.size > 1 || arguments.gathered_a != nullptr) {
    m_gathered = gathered(arguments);
    a = m_gathered;
    if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY && m_problem.size == 1) {
      if (arguments.a != arguments.gathered_a) copy(m_gathered, arguments.a, m_problem.shard_bytes(), arguments.stream);
    } else if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY) {
      enqueue_collective(arguments.a, m_gathered, arguments.stream);
    }
  }
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) multiply(a, 0, m_problem.description.m, arguments);
}

// The run ends when everything has arrived, and when nobody reads this rank's rows any more.
void device_gather_plan::enqueue_pipelined(const isthmus_fused_arguments& arguments) {
  m_gathered = gathered(arguments);
  const bool is_communicating = arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY;
  if (is_communicating) {
    // Before the copies, which wait for peers: streams of one queue must not hold up what peers wait for.
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

// Tells every peer how many steps of this rank's rows it may fetch.
void device_gather_plan::publish(const isthmus_fused_arguments& arguments) {
  m_driver.wait(m_device, m_signal.stream, m_start);
  isthmus_heap_block block{};
  m_is_staged = !m_owner->heap().find(arguments.a, m_problem.shard_bytes(), &block, nullptr);
  const std::uint32_t before = (m_run_number - 1) * stage_steps;
  const auto publish_steps = [&](std::uint32_t steps) {
    for (int step = 1; step < m_problem.size; ++step) {
      const int peer = (m_problem.rank - step + m_problem.size) % m_problem.size;
      m_driver.write_word(m_device, m_shared->ready(peer, m_problem.rank), before + steps, m_signal.stream);
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
  if (!m_is_staged) m_owner->heap().find(arguments.a, m_problem.shard_bytes(), &block, &offset);
  // All ranks start together, so that each source has one reader at a time: two readers of one take turns on
  // its port, and once out of step they stay so.
  for (int peer = 0; peer < m_problem.size; ++peer)
    if (peer != m_problem.rank)
      m_driver.wait_word(m_device, m_shared->ready(m_problem.rank, peer), (m_run_number - 1) * stage_steps + 1,
                         m_copy.stream);
  for (std::size_t index = 1; index < m_schedule.groups.size(); ++index) {
    const int source = m_schedule.groups[index].source;
    pull_group(index, m_is_staged ? m_shared->stage(source)
                               : static_cast<const std::byte*>(block.peers[source]) + offset);
    const bool is_last_group = index + 1 == m_schedule.groups.size() || m_schedule.groups[index + 1].source != source;
    if (is_last_group) m_driver.write_word(m_device, m_shared->done(source, m_problem.rank), m_run_number, m_copy.stream);
  }
  std::byte* own = m_gathered + static_cast<std::uint64_t>(m_problem.rank) * m_problem.shard_bytes();
  if (arguments.gathered_a != nullptr && arguments.a != own) copy(own, arguments.a, m_problem.shard_bytes(), m_copy.stream);
}

void device_gather_plan::pull_group(std::size_t index, const std::byte* base) {
  const row_group& each = m_schedule.groups[index];
  std::uint32_t step = 0;
  while (stage_step_end(step) < each.begin + each.rows) ++step;
  m_driver.wait_word(m_device, m_shared->ready(m_problem.rank, each.source), (m_run_number - 1) * stage_steps + step + 1,
                     m_copy.stream);
  record_time(&group_times::copy_begin, index, m_copy.stream);
  const std::uint64_t row = static_cast<std::uint64_t>(each.source) * m_problem.shard_rows + each.begin;
  copy(m_gathered + row * row_bytes(), base + each.begin * row_bytes(), each.rows * row_bytes(), m_copy.stream);
  record_time(&group_times::copy_end, index, m_copy.stream);
  m_driver.record(m_device, m_group_events[index], m_copy.stream);
}

void device_gather_plan::compute(const isthmus_fused_arguments& arguments) {
  const bool is_whole_run = arguments.view == ISTHMUS_FUSED_WHOLE;
  for (std::size_t index = 0; index < m_schedule.groups.size(); ++index) {
    const row_group& each = m_schedule.groups[index];
    const bool own = each.source == m_problem.rank;
    const std::uint64_t row = static_cast<std::uint64_t>(each.source) * m_problem.shard_rows + each.begin;
    if (!own && is_whole_run) m_driver.wait(m_device, arguments.stream, m_group_events[index]);
    record_time(&group_times::product_begin, index, arguments.stream);
    multiply(own ? arguments.a : m_gathered + row * row_bytes(), row, each.rows, arguments);
    record_time(&group_times::product_end, index, arguments.stream);
  }
}

std::unique_ptr<plan> make_device_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem) {
  const device_libraries libraries = find_device_libraries(*owner);
  return std::make_unique<device_gather_plan>(std::move(owner), problem, libraries.driver, libraries.blas);
}

}  // namespace isthmus::fused
