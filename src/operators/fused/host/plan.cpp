#include "operators/fused/host/plan.hpp"

#include <cstring>
#include <nlohmann/json.hpp>

#include "operators/fused/host/costs.hpp"

namespace isthmus::fused {

host_plan::host_plan(std::shared_ptr<communicator> owner, const fused_problem& problem, const blas& library)
    : plan(std::move(owner), problem), m_blas(library), m_product(m_problem, library) {}

void host_plan::finish_setup(std::uint64_t stage_bytes) {
  m_costs = host_costs(*m_owner, m_problem, m_blas);
  m_schedule = make_schedule(m_problem, m_costs);
  if (m_owner->ranks().nodes > 1)
    m_schedule = sequential_fallback(m_problem, m_schedule, m_owner->ranks().nodes);
  agree_on_schedule(*m_owner, m_problem, m_schedule);
  if (!m_schedule.is_pipelined) return;
  m_stage_bytes = stage_bytes;
  m_counters.emplace(*m_owner, stage_bytes);
  m_copy_thread.emplace();
}

void host_plan::close() {
  m_copy_thread.reset();
  m_counters.reset();
}

void host_plan::describe(nlohmann::json& info) const {
  info["libraries"]["blas"] = m_blas.path();
  info["workspace_bytes"] = m_workspace.size() + m_packed.size() + m_product.workspace_bytes() +
                            (m_counters ? m_stage_bytes + sizeof(counter_line) : 0);
  if (m_is_staged)
    info["notes"].push_back("A was outside the symmetric heap: its rows were first copied to the plan's stage");
}

void host_plan::run(const isthmus_fused_arguments& arguments) {
  m_owner->check_alive();
  m_timeline.clear();
  m_blas.set_threads(threads_per_rank(*m_owner));
  if (!m_schedule.is_pipelined) return run_sequential(arguments);
  try {
    run_pipelined(arguments);
  } catch (const error& failure) {
    m_counters->fail();
    if (!m_owner->is_aborted()) m_owner->abort(failure.info());
    throw;
  }
}

void host_plan::run_pipelined(const isthmus_fused_arguments& arguments) {
  if (arguments.view == ISTHMUS_FUSED_COMPUTE_ONLY) {
    set_arrived_groups(m_schedule.groups.size());
    return compute(arguments);
  }
  ++m_run_number;
  set_arrived_groups(0);
  m_has_copy_failed.store(false);
  m_copy_failure.reset();
  m_copy_thread->start([this, &arguments] {
    try {
      run_copies(arguments);
    } catch (const error& failure) {
      m_copy_failure = failure;
      m_has_copy_failed.store(true, std::memory_order_release);
    }
  });
  try {
    if (arguments.view == ISTHMUS_FUSED_WHOLE) compute(arguments);
  } catch (...) {
    m_counters->fail();
    if (!m_owner->is_aborted() && m_copy_failure) m_owner->abort(m_copy_failure->info());
    m_copy_thread->wait();  // bounded, because the waits of the copy thread are bounded
    throw;
  }
  m_copy_thread->wait();
  if (m_copy_failure) throw error(*m_copy_failure);
  finish();
}

void host_plan::compute(const isthmus_fused_arguments& arguments) {
  m_product.set_b(arguments.b);
  for (std::size_t index = 0; index < m_schedule.groups.size(); ++index) {
    const row_group& group = m_schedule.groups[index];
    m_counters->wait_until(
        [&] {
          if (m_has_copy_failed.load(std::memory_order_acquire)) throw error(*m_copy_failure);
          return !group.waits_for_chunk || m_arrived_groups.load(std::memory_order_acquire) > index;
        },
        m_problem.is_gather() ? group.source : (m_problem.rank - 1 + m_problem.size) % m_problem.size,
        "to deliver what the next product needs");
    const scoped_trace slice(m_timeline, trace_track::compute, [&] { return name_of(group); });
    compute_group(index, arguments);
  }
}

void host_plan::copy_rows(const std::byte* from, std::uint64_t from_stride, std::byte* to,
                          std::uint64_t to_stride, std::uint64_t row_bytes, std::uint64_t rows) {
  if (rows == 0 || row_bytes == 0) return;
  if (from_stride == row_bytes && to_stride == row_bytes) {
    std::memcpy(to, from, rows * row_bytes);
    return;
  }
  for (std::uint64_t row = 0; row < rows; ++row)
    std::memcpy(to + row * to_stride, from + row * from_stride, row_bytes);
}

}  // namespace isthmus::fused
