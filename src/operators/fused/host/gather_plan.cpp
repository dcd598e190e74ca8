// ALLGATHER_GEMM on the host. The copy thread fetches the peers' rows in chunks from shared memory while the
// caller multiplies, starting with its own rows.

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "operators/fused/host/plan.hpp"

namespace isthmus::fused {
namespace {

constexpr std::uint64_t stage_step_bytes = std::uint64_t{256}
                                           << 10;  // bytes published per step; fits into the L2 cache

}  // namespace

class host_gather_plan : public host_plan {
 public:
  host_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem);

 private:
  struct shard_location {
    std::uint64_t block = 0;  // 0: outside the heap
    std::uint64_t offset = 0;
    void* const* peers = nullptr;
  };

  void run_sequential(const isthmus_fused_arguments& arguments) override;
  void run_copies(const isthmus_fused_arguments& arguments) override;
  void compute_group(std::size_t index, const isthmus_fused_arguments& arguments) override;
  void finish() override;

  std::byte* gathered(const isthmus_fused_arguments& arguments);
  void gather_all(const isthmus_fused_arguments& arguments);
  void publish(const isthmus_fused_arguments& arguments);
  void stage_own(const isthmus_fused_arguments& arguments);
  void fetch(const row_group& group, std::byte* to);
  const std::byte* address_of(int source) const;
  shard_location find(const void* a) const;
  void copy_dense(const std::byte* from, std::uint64_t lda, std::byte* to, std::uint64_t rows) const;
  std::uint64_t row_of(const row_group& group) const {
    return static_cast<std::uint64_t>(group.source) * m_problem.shard_rows + group.begin;
  }
  std::uint64_t row_bytes() const { return m_problem.moved_row_bytes(); }

  shard_location m_own_shard;
};

host_gather_plan::host_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : host_plan(std::move(owner), problem) {
  finish_setup(m_problem.moved_bytes());
  if (m_problem.size > 1) m_workspace.resize(m_problem.description.m * row_bytes());
}

std::byte* host_gather_plan::gathered(const isthmus_fused_arguments& arguments) {
  return arguments.gathered_a != nullptr ? static_cast<std::byte*>(arguments.gathered_a) : m_workspace.data();
}

// ---- sequential: the communicator's allgather, then one product -----------------------------------------

void host_gather_plan::run_sequential(const isthmus_fused_arguments& arguments) {
  if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY) gather_all(arguments);
  if (arguments.view == ISTHMUS_FUSED_COMMUNICATION_ONLY) return;
  const scoped_trace slice(m_timeline, trace_track::compute,
                           [&] { return fmt::format("rows 0..{}", m_problem.description.m); });
  const bool is_single_rank = m_problem.size == 1;
  m_product.set_b(arguments.b);
  m_product.run(is_single_rank ? arguments.a : gathered(arguments),
                is_single_rank ? m_problem.description.lda : m_problem.description.k, m_problem.description.m,
                {arguments.c, m_problem.description.ldc},
                {static_cast<float>(arguments.alpha), static_cast<float>(arguments.beta), arguments.bias});
}

void host_gather_plan::gather_all(const isthmus_fused_arguments& arguments) {
  const auto* a = static_cast<const std::byte*>(arguments.a);
  if (m_problem.size == 1) {
    if (arguments.gathered_a != nullptr && arguments.a != arguments.gathered_a)
      copy_dense(a, m_problem.description.lda, gathered(arguments), m_problem.shard_rows);
    return;
  }
  const scoped_trace slice(m_timeline, trace_track::copy,
                           [&] { return std::string(isthmus_collective_name(m_problem.collective())); });
  if (m_problem.description.lda != m_problem.description.k) {
    m_packed.resize(m_problem.moved_bytes());
    copy_dense(a, m_problem.description.lda, m_packed.data(), m_problem.shard_rows);
    a = m_packed.data();
  }
  enqueue_collective(a, gathered(arguments), nullptr);
}

// ---- pipelined ----------------------------------------------------------------------------------------

void host_gather_plan::compute_group(std::size_t index, const isthmus_fused_arguments& arguments) {
  const row_group& group = m_schedule.groups[index];
  const bool is_own = group.source == m_problem.rank;
  const std::uint64_t row = row_of(group);
  m_product.run(
      is_own ? arguments.a : gathered(arguments) + row * row_bytes(),
      is_own ? m_problem.description.lda : m_problem.description.k, group.rows,
      {static_cast<std::byte*>(arguments.c) + row * m_problem.description.ldc * m_problem.output_bytes(),
       m_problem.description.ldc},
      {static_cast<float>(arguments.alpha), static_cast<float>(arguments.beta), arguments.bias});
}

// Group 0 is this rank's own shard, which needs no copy.
void host_gather_plan::run_copies(const isthmus_fused_arguments& arguments) {
  publish(arguments);
  for (std::size_t index = 1; index < m_schedule.groups.size(); ++index) {
    fetch(m_schedule.groups[index], gathered(arguments) + row_of(m_schedule.groups[index]) * row_bytes());
    set_arrived_groups(index + 1);
  }
  m_counters->line(m_problem.rank).consumed_runs.store(m_run_number, std::memory_order_release);
  std::byte* own_rows =
      gathered(arguments) + static_cast<std::uint64_t>(m_problem.rank) * m_problem.moved_bytes();
  if (arguments.gathered_a != nullptr && arguments.a != own_rows)
    copy_dense(static_cast<const std::byte*>(arguments.a), m_problem.description.lda, own_rows,
               m_problem.shard_rows);
}

// The caller may overwrite A as soon as the run returns.
void host_gather_plan::finish() {
  if (!m_is_staged) m_counters->wait_until_consumed(m_run_number);
}

void host_gather_plan::publish(const isthmus_fused_arguments& arguments) {
  // Readers of the previous run may still be reading the line and the stage.
  m_counters->wait_until_consumed(m_run_number - 1);
  m_own_shard = find(arguments.a);
  m_is_staged = m_own_shard.block == 0;
  counter_line& line = m_counters->line(m_problem.rank);
  line.block.store(m_own_shard.block, std::memory_order_relaxed);
  line.offset.store(m_own_shard.offset, std::memory_order_relaxed);
  if (m_is_staged) return stage_own(arguments);
  line.ready.store(m_run_number * m_problem.shard_rows, std::memory_order_release);
}

void host_gather_plan::stage_own(const isthmus_fused_arguments& arguments) {
  const scoped_trace slice(m_timeline, trace_track::stage, [] { return std::string("own rows to the heap"); });
  counter_line& line = m_counters->line(m_problem.rank);
  const std::uint64_t step =
      std::max<std::uint64_t>(1, stage_step_bytes / std::max<std::uint64_t>(row_bytes(), 1));
  const std::uint64_t earlier_rows = (m_run_number - 1) * m_problem.shard_rows;
  for (std::uint64_t begin = 0; begin < m_problem.shard_rows; begin += step) {
    const std::uint64_t rows = std::min(step, m_problem.shard_rows - begin);
    copy_dense(static_cast<const std::byte*>(arguments.a) +
                   begin * m_problem.description.lda * m_problem.input_bytes(),
               m_problem.description.lda, m_counters->stage(m_problem.rank) + begin * row_bytes(), rows);
    line.ready.store(earlier_rows + begin + rows, std::memory_order_release);
  }
}

void host_gather_plan::fetch(const row_group& group, std::byte* to) {
  const std::uint64_t earlier_rows = (m_run_number - 1) * m_problem.shard_rows;
  const counter_line& line = m_counters->line(group.source);
  m_counters->wait(group.source, line.ready, earlier_rows + group.begin + group.rows, "to publish its rows");
  const scoped_trace slice(m_timeline, trace_track::copy, [&] { return name_of(group); });
  const bool staged = line.block.load(std::memory_order_relaxed) == 0;
  const std::uint64_t lda = staged ? m_problem.description.k : m_problem.description.lda;
  copy_dense(address_of(group.source) + group.begin * lda * m_problem.input_bytes(), lda, to, group.rows);
}

// Address of the shard of `source` in this process. Precondition: `source` has published.
const std::byte* host_gather_plan::address_of(int source) const {
  const counter_line& line = m_counters->line(source);
  const std::uint64_t block = line.block.load(std::memory_order_relaxed);
  if (block == 0) return m_counters->stage(source);
  if (block != m_own_shard.block)
    throw make_error(
        ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
        fmt::format("fused_run: A of rank {} lies in block {} of the symmetric heap, on this rank it is {}",
                    source, block,
                    m_own_shard.block == 0 ? "outside" : fmt::format("in block {}", m_own_shard.block)),
        "pass A in the same block of the heap on all ranks, or outside of the heap on all ranks");
  return static_cast<const std::byte*>(m_own_shard.peers[source]) + line.offset.load(std::memory_order_relaxed);
}

host_gather_plan::shard_location host_gather_plan::find(const void* a) const {
  isthmus_heap_block block{};
  std::uint64_t offset = 0;
  const std::uint64_t bytes = m_problem.a_extent() * m_problem.input_bytes();
  if (bytes == 0 || !m_owner->heap().find(a, bytes, &block, &offset)) return {};
  return {block.id, offset, block.peers};
}

void host_gather_plan::copy_dense(const std::byte* from, std::uint64_t lda, std::byte* to,
                                  std::uint64_t rows) const {
  copy_rows(from, lda * m_problem.input_bytes(), to, row_bytes(), row_bytes(), rows);
}

std::unique_ptr<plan> make_host_gather_plan(std::shared_ptr<communicator> owner, const fused_problem& problem) {
  return std::make_unique<host_gather_plan>(std::move(owner), problem);
}

}  // namespace isthmus::fused
