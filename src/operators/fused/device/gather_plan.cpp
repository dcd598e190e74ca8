// ALLGATHER_GEMM on devices. Copy engines push the rank's rows in chunks into the buffers of its peers, while it
// multiplies the same rows. Products of rows of a peer wait until these have arrived.

#include "base/error.hpp"
#include "operators/fused/device/plan.hpp"

namespace isthmus::fused {

class device_gather_plan : public device_plan {
 public:
  device_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);

 private:
  void enqueue_sequential(const isthmus_fused_arguments& arguments) override;
  void enqueue_pipelined(const isthmus_fused_arguments& arguments) override;
  void push(const isthmus_fused_arguments& arguments);
  void receive();
  void copy_gathered(const isthmus_fused_arguments& arguments);
  void multiply_groups(const isthmus_fused_arguments& arguments);
  void multiply(const void* a, std::uint64_t first_row, std::uint64_t rows,
                const isthmus_fused_arguments& arguments);
  // The rows of A of all ranks, in the order of the ranks.
  std::byte* gathered_rows(std::byte* matrix, const row_group& group) const {
    return matrix + first_row(group) * row_bytes();
  }
  std::uint64_t first_row(const row_group& group) const {
    return static_cast<std::uint64_t>(group.source) * m_problem.shard_rows + group.begin;
  }
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }
  // The number of a group among the chunks of its source, from 1.
  std::uint32_t chunk_number(std::size_t index) const;
  push_peers other_ranks() const;
};

device_gather_plan::device_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : device_plan(std::move(owner), problem) {
  if (m_problem.description.lda != m_problem.description.k)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("fused_plan_create: lda = {} differs from k = {}", m_problem.description.lda,
                                 m_problem.description.k),
                     "set lda = k: the gathered A is dense on devices");
  finish_setup(m_problem.description.m * row_bytes(), other_ranks());
}

device_plan::push_peers device_gather_plan::other_ranks() const {
  push_peers peers;
  for (int rank = 0; rank < m_problem.size; ++rank)
    if (rank != m_problem.rank) peers.sources.push_back(rank);
  peers.targets = peers.sources;
  return peers;
}

void device_gather_plan::multiply(const void* a, std::uint64_t first_row, std::uint64_t rows,
                                  const isthmus_fused_arguments& arguments) {
  std::byte* c =
      static_cast<std::byte*>(arguments.c) + first_row * m_problem.description.ldc * m_problem.output_bytes();
  m_product.enqueue(a, m_problem.description.k, rows, arguments.b, c, c,
                    {static_cast<float>(arguments.alpha), static_cast<float>(arguments.beta), arguments.bias},
                    arguments.stream);
}

// Runs the communicator's allgather, then one product.
void device_gather_plan::enqueue_sequential(const isthmus_fused_arguments& arguments) {
  const void* a = arguments.a;
  if (m_problem.size > 1 || arguments.gathered_a != nullptr) {
    std::byte* gathered =
        arguments.gathered_a != nullptr ? static_cast<std::byte*>(arguments.gathered_a) : workspace();
    a = gathered;
    if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY && m_problem.size == 1) {
      if (arguments.a != arguments.gathered_a)
        copy(gathered, arguments.a, m_problem.moved_bytes(), arguments.stream);
    } else if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY) {
      enqueue_collective(arguments.a, gathered, arguments.stream);
    }
  }
  if (arguments.view != ISTHMUS_FUSED_COMMUNICATION_ONLY) multiply(a, 0, m_problem.description.m, arguments);
}

// Even if streams share a hardware queue, everything that a command waits for is enqueued before it on the rank that
// provides it: the previous run has announced room, and the pushes come before the work on rows of peers.
void device_gather_plan::enqueue_pipelined(const isthmus_fused_arguments& arguments) {
  const bool is_communicating = arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY;
  if (is_communicating) {
    push(arguments);
    receive();
    if (arguments.gathered_a != nullptr) copy_gathered(arguments);
  }
  multiply_groups(arguments);
  if (is_communicating && arguments.gathered_a != nullptr) join(m_local, arguments.stream);
}

std::uint32_t device_gather_plan::chunk_number(std::size_t index) const {
  std::uint32_t number = 1;
  while (m_schedule.groups[index - number].source == m_schedule.groups[index].source) ++number;
  return number;
}

// In step t, every rank receives rows of rank + t, so it pushes to rank - t. All ranks start together, so that one rank
// at a time pushes into a buffer. All ranks divide the shard of step t in the same way.
void device_gather_plan::push(const isthmus_fused_arguments& arguments) {
  wait_for_room();
  for (std::size_t index = 1; index < m_schedule.groups.size(); ++index) {
    const row_group& group = m_schedule.groups[index];
    const row_group own_group = {m_problem.rank, group.begin, group.rows, false};
    const int target = (2 * m_problem.rank - group.source + m_problem.size) % m_problem.size;
    push_chunk(target, chunk_number(index), gathered_rows(m_shared->buffer(target), own_group),
               static_cast<const std::byte*>(arguments.a) + group.begin * row_bytes(), index);
  }
}

void device_gather_plan::receive() {
  for (std::size_t index = 1; index < m_schedule.groups.size(); ++index)
    receive_chunk(m_schedule.groups[index].source, chunk_number(index), index);
}

// Copies all rows to the caller's memory, on a side stream.
void device_gather_plan::copy_gathered(const isthmus_fused_arguments& arguments) {
  fork(m_local);
  auto* to = static_cast<std::byte*>(arguments.gathered_a);
  std::byte* from = m_shared->buffer(m_problem.rank);
  std::byte* own_rows = gathered_rows(to, m_schedule.groups[0]);
  if (arguments.a != own_rows) copy(own_rows, arguments.a, m_problem.moved_bytes(), m_local.stream);
  for (std::size_t index = 1; index < m_schedule.groups.size(); ++index) {
    const row_group& group = m_schedule.groups[index];
    wait_for_chunk(index, m_local.stream);
    copy(gathered_rows(to, group), gathered_rows(from, group), group.rows * row_bytes(), m_local.stream);
  }
}

void device_gather_plan::multiply_groups(const isthmus_fused_arguments& arguments) {
  std::byte* gathered = m_shared->buffer(m_problem.rank);
  for (std::size_t index = 0; index < m_schedule.groups.size(); ++index) {
    const row_group& group = m_schedule.groups[index];
    const bool is_own = group.source == m_problem.rank;
    if (!is_own && arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY) wait_for_chunk(index, arguments.stream);
    if (arguments.view == ISTHMUS_FUSED_COMMUNICATION_ONLY) continue;
    record_time(&group_times::product_begin, index, arguments.stream);
    multiply(is_own ? arguments.a : gathered_rows(gathered, group), first_row(group), group.rows, arguments);
    record_time(&group_times::product_end, index, arguments.stream);
  }
}

std::unique_ptr<plan> make_device_gather_plan(std::shared_ptr<communicator> owner,
                                              const fused_problem& problem) {
  return std::make_unique<device_gather_plan>(std::move(owner), problem);
}

}  // namespace isthmus::fused
