#include "fused/host_gather_plan.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fused/host_costs.hpp"
#include "runtime/error.hpp"

namespace isthmus::fused {
namespace {

constexpr std::uint64_t stage_step_bytes = std::uint64_t{256} << 10;  // published together; fits the L2 cache

}  // namespace

host_gather_plan::host_gather_plan(std::shared_ptr<communicator> owner, const problem& what,
                                   const blas& library)
    : plan(std::move(owner), what), m_blas(library), m_product(m_what, library) {
  m_figures = host_costs(*m_owner, m_what, library);
  m_order = make_schedule(m_what, m_figures);
  if (m_owner->ranks().nodes > 1) m_order = without_shared_memory(m_what, m_order, m_owner->ranks().nodes);
  agree_on_mode(*m_owner, m_order);
  if (m_what.size > 1) m_workspace.resize(m_what.asked.m * row_bytes());
  if (!m_order.pipelined) return;
  m_board.emplace(*m_owner, m_what.shard_bytes());
  m_mover.emplace();
}

void host_gather_plan::close() {
  m_mover.reset();
  m_board.reset();
}

void host_gather_plan::describe(nlohmann::json& info) const {
  info["libraries"]["blas"] = m_blas.path();
  info["workspace_bytes"] = m_workspace.size() + m_packed.size() + m_product.workspace_bytes() +
                            (m_board ? m_what.shard_bytes() + sizeof(board_line) : 0);
  if (m_staged)
    info["notes"].push_back(
        "A was outside the symmetric heap: its rows were copied into the plan's stage first");
}

void host_gather_plan::run(const isthmus_fused_arguments& with) {
  m_owner->check_alive();
  m_timeline.clear();
  m_blas.set_threads(threads_per_rank(*m_owner));
  m_gathered = with.gathered_a != nullptr ? static_cast<std::byte*>(with.gathered_a) : m_workspace.data();
  if (!m_order.pipelined) return run_sequential(with);
  try {
    run_pipelined(with);
  } catch (const error& failure) {
    m_board->fail();
    if (!m_owner->poisoned()) m_owner->poison(failure.info());
    throw;
  }
}

// ---- sequential: the communicator's own allgather, then one product -----------------------------------

void host_gather_plan::run_sequential(const isthmus_fused_arguments& with) {
  if (with.view != ISTHMUS_FUSED_COMPUTE_ONLY) gather_all(with);
  if (with.view == ISTHMUS_FUSED_COMMUNICATION_ONLY) return;
  const traced slice(m_timeline, track::compute, [&] { return fmt::format("rows 0..{}", m_what.asked.m); });
  const bool alone = m_what.size == 1;
  m_product.set_b(with.b);
  m_product.run(alone ? with.a : m_gathered, alone ? m_what.asked.lda : m_what.asked.k, m_what.asked.m, with.c,
                {static_cast<float>(with.alpha), static_cast<float>(with.beta), with.bias});
}

void host_gather_plan::gather_all(const isthmus_fused_arguments& with) {
  const auto* a = static_cast<const std::byte*>(with.a);
  if (m_what.size == 1) {
    if (with.gathered_a != nullptr && with.a != with.gathered_a)
      copy_rows(a, m_what.asked.lda, m_gathered, m_what.shard_rows);
    return;
  }
  const traced slice(m_timeline, track::copy, [] { return std::string("allgather"); });
  if (m_what.asked.lda != m_what.asked.k) {
    m_packed.resize(m_what.shard_bytes());
    copy_rows(a, m_what.asked.lda, m_packed.data(), m_what.shard_rows);
    a = m_packed.data();
  }
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLGATHER;
  operation.datatype = m_what.asked.input;
  operation.count = m_what.shard_rows * m_what.asked.k;
  operation.send_buf = a;
  operation.recv_buf = m_gathered;
  m_owner->enqueue(operation);
}

// ---- pipelined ----------------------------------------------------------------------------------------

void host_gather_plan::run_pipelined(const isthmus_fused_arguments& with) {
  if (with.view == ISTHMUS_FUSED_COMPUTE_ONLY) {
    m_arrived.store(m_order.groups.size());
    return compute(with);
  }
  ++m_run;
  m_arrived.store(0);
  m_move_failed.store(false);
  m_move_failure.reset();
  m_mover->start([this, &with] {
    try {
      move(with);
    } catch (const error& failure) {
      m_move_failure = failure;
      m_move_failed.store(true, std::memory_order_release);
    }
  });
  try {
    if (with.view == ISTHMUS_FUSED_WHOLE) compute(with);
  } catch (...) {
    m_board->fail();
    if (!m_owner->poisoned() && m_move_failure) m_owner->poison(m_move_failure->info());
    m_mover->wait();  // bounded: its own waits are
    throw;
  }
  m_mover->wait();
  if (m_move_failure) throw error(*m_move_failure);
  if (!m_staged) m_board->wait_until_consumed(m_run);  // the caller may overwrite A when this returns
}

void host_gather_plan::compute(const isthmus_fused_arguments& with) {
  m_product.set_b(with.b);
  for (std::size_t index = 0; index < m_order.groups.size(); ++index) {
    const int source = m_order.groups[index].source;
    m_board->wait_until(
        [&] {
          if (m_move_failed.load(std::memory_order_acquire)) throw error(*m_move_failure);
          return source == m_what.rank || m_arrived.load(std::memory_order_acquire) >= index;
        },
        source, "to deliver its rows");
    compute_group(index, with);
  }
}

void host_gather_plan::compute_group(std::size_t index, const isthmus_fused_arguments& with) {
  const row_group& each = m_order.groups[index];
  const traced slice(m_timeline, track::compute, [&] { return name_of(each); });
  const bool own = each.source == m_what.rank;
  const std::byte* a = own ? static_cast<const std::byte*>(with.a) : gathered_row(each.source, each.begin);
  const std::uint64_t row = static_cast<std::uint64_t>(each.source) * m_what.shard_rows + each.begin;
  m_product.run(a, own ? m_what.asked.lda : m_what.asked.k, each.rows,
                static_cast<std::byte*>(with.c) + row * m_what.asked.ldc * m_what.output_bytes(),
                {static_cast<float>(with.alpha), static_cast<float>(with.beta), with.bias});
}

// The mover's whole run. Group 0 is the own shard; m_arrived counts the groups behind it.
void host_gather_plan::move(const isthmus_fused_arguments& with) {
  publish(with);
  for (std::size_t index = 1; index < m_order.groups.size(); ++index) {
    fetch(m_order.groups[index]);
    m_arrived.store(index, std::memory_order_release);
  }
  m_board->line(m_what.rank).consumed.store(m_run, std::memory_order_release);
  std::byte* own = gathered_row(m_what.rank, 0);
  if (with.gathered_a != nullptr && with.a != own)
    copy_rows(static_cast<const std::byte*>(with.a), m_what.asked.lda, own, m_what.shard_rows);
}

void host_gather_plan::publish(const isthmus_fused_arguments& with) {
  // Readers of the run before may still be looking at the line, and at the stage.
  m_board->wait_until_consumed(m_run - 1);
  m_own = find(with.a);
  m_staged = m_own.block == 0;
  board_line& line = m_board->line(m_what.rank);
  line.block.store(m_own.block, std::memory_order_relaxed);
  line.offset.store(m_own.offset, std::memory_order_relaxed);
  if (m_staged) return stage_own(with);
  line.ready.store(m_run * m_what.shard_rows, std::memory_order_release);
}

void host_gather_plan::stage_own(const isthmus_fused_arguments& with) {
  const traced slice(m_timeline, track::stage, [] { return std::string("own rows to the heap"); });
  board_line& line = m_board->line(m_what.rank);
  const std::uint64_t step =
      std::max<std::uint64_t>(1, stage_step_bytes / std::max<std::uint64_t>(row_bytes(), 1));
  const std::uint64_t before = (m_run - 1) * m_what.shard_rows;
  for (std::uint64_t begin = 0; begin < m_what.shard_rows; begin += step) {
    const std::uint64_t rows = std::min(step, m_what.shard_rows - begin);
    copy_rows(static_cast<const std::byte*>(with.a) + begin * m_what.asked.lda * m_what.input_bytes(),
              m_what.asked.lda, m_board->stage(m_what.rank) + begin * row_bytes(), rows);
    line.ready.store(before + begin + rows, std::memory_order_release);
  }
}

void host_gather_plan::fetch(const row_group& each) {
  const std::uint64_t before = (m_run - 1) * m_what.shard_rows;
  const board_line& line = m_board->line(each.source);
  m_board->wait(each.source, line.ready, before + each.begin + each.rows, "to publish its rows");
  const traced slice(m_timeline, track::copy, [&] { return name_of(each); });
  const bool staged = line.block.load(std::memory_order_relaxed) == 0;
  const std::uint64_t lda = staged ? m_what.asked.k : m_what.asked.lda;
  copy_rows(address_of(each.source) + each.begin * lda * m_what.input_bytes(), lda,
            gathered_row(each.source, each.begin), each.rows);
}

// Where this process reaches the shard of `source`, which has published.
const std::byte* host_gather_plan::address_of(int source) const {
  const board_line& line = m_board->line(source);
  const std::uint64_t block = line.block.load(std::memory_order_relaxed);
  if (block == 0) return m_board->stage(source);
  if (block != m_own.block)
    throw make_error(
        ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
        fmt::format("fused_run: A of rank {} lies in block {} of the symmetric heap, here it is {}", source,
                    block, m_own.block == 0 ? "outside" : fmt::format("in block {}", m_own.block)),
        "all ranks pass A in the same block of the heap, or all outside");
  return static_cast<const std::byte*>(m_own.peers[source]) + line.offset.load(std::memory_order_relaxed);
}

host_gather_plan::location host_gather_plan::find(const void* a) const {
  isthmus_heap_block block{};
  std::uint64_t offset = 0;
  const std::uint64_t bytes = m_what.a_extent() * m_what.input_bytes();
  if (bytes == 0 || !m_owner->heap().find(a, bytes, &block, &offset)) return {};
  return {block.id, offset, block.peers};
}

void host_gather_plan::copy_rows(const std::byte* from, std::uint64_t lda, std::byte* to,
                                 std::uint64_t rows) const {
  const std::uint64_t stride = lda * m_what.input_bytes();
  if (stride == row_bytes()) {
    if (rows > 0 && stride > 0) std::memcpy(to, from, rows * stride);
    return;
  }
  for (std::uint64_t row = 0; row < rows; ++row)
    std::memcpy(to + row * row_bytes(), from + row * stride, row_bytes());
}

std::byte* host_gather_plan::gathered_row(int source, std::uint64_t row) const {
  return m_gathered + (static_cast<std::uint64_t>(source) * m_what.shard_rows + row) * row_bytes();
}

std::unique_ptr<plan> make_host_gather_plan(std::shared_ptr<communicator> owner, const problem& what) {
  const blas& library = find_blas(*owner);
  return std::make_unique<host_gather_plan>(std::move(owner), what, library);
}

}  // namespace isthmus::fused
