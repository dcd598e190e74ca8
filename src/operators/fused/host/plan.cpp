#include "operators/fused/host/plan.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"

namespace isthmus::fused {
namespace {

// ---- costs ----

struct rates {
  double gflops = 0;    // of a product on one thread
  double copy_gbs = 0;  // of copies on one thread
};

template <typename Work>
double best_seconds(Work&& work) {
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// Takes a few milliseconds, once per process.
rates measure(const blas& library) {
  static std::mutex mutex;
  static rates measured_rates;
  const std::lock_guard lock(mutex);
  if (measured_rates.gflops > 0) return measured_rates;
  constexpr std::uint64_t edge = 320;
  std::vector<float> a(edge * edge), c(edge * edge);
  std::iota(a.begin(), a.end(), 0.5f);
  library.set_threads(1);
  const double product_s = best_seconds(
      [&] { library.sgemm(edge, edge, edge, 1, a.data(), edge, false, a.data(), edge, 0, c.data(), edge); });
  std::vector<std::byte> from(std::size_t{8} << 20, std::byte{1}), to(from.size());
  const double copy_s = best_seconds([&] { std::memcpy(to.data(), from.data(), from.size()); });
  measured_rates = {2e-9 * edge * edge * edge / product_s, static_cast<double>(from.size()) / copy_s / 1e9};
  return measured_rates;
}

int cores() {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? std::max(1, CPU_COUNT(&cpus)) : 1;
}

// The cores of the machine divided by its ranks. Returns 1 if several ranks share a process, because a BLAS
// serializes multi-threaded calls.
int threads_per_rank(const communicator& owner) {
  if (owner.ranks().process_size > 1) return 1;
  return std::max(1, cores() / owner.ranks().node_size);
}

// Collective.
// Errors: all ranks throw error (UNSUPPORTED) if any rank has no BLAS.
const blas& require_blas(communicator& owner) {
  std::string reason;
  const blas* library = blas::get(owner.option("backend.fused.blas_library"), reason);
  std::optional<error> missing;
  if (library == nullptr)
    missing = make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE, "fused_plan_create: " + reason,
                         "install OpenBLAS (pip install scipy-openblas32) or set ISTHMUS_BLAS_LIBRARY");
  agree(owner.control(), no_value{}, missing, "fused_plan_create: a BLAS library is missing",
        ISTHMUS_ERROR_UNSUPPORTED);
  return *library;
}

// Collective. Measures once per process and uses the results of the slowest rank, unless they are configured.
cost_model host_costs(communicator& owner, const fused_problem& problem, const blas& library) {
  const rates own = measure(library);
  struct rank_rates {
    double gflops, copy_gbs;
    std::int32_t can_overlap, cores;
  };
  const auto all = gather_values(owner.control(), rank_rates{own.gflops * threads_per_rank(owner), own.copy_gbs,
                                                             cores() > owner.ranks().node_size, cores()});
  rank_rates slowest = all[0];
  for (const rank_rates& each : all)
    slowest = {std::min(slowest.gflops, each.gflops), std::min(slowest.copy_gbs, each.copy_gbs),
               std::min(slowest.can_overlap, each.can_overlap), std::min(slowest.cores, each.cores)};
  const double gflops = read_number_option(owner, "gemm_gflops", slowest.gflops);
  const double copy_gbs = read_number_option(owner, "link_gbs", slowest.copy_gbs);
  const double per_row_us = problem.flops(1) / gflops / 1e3;
  cost_model costs;
  costs.product_us = [per_row_us](std::uint64_t rows) { return 3 + per_row_us * static_cast<double>(rows); };
  costs.bytes_per_us = copy_gbs * 1e3;
  costs.chunk_us = read_number_option(owner, "chunk_us", 5);
  costs.fixed_us =
      read_number_option(owner, "pipeline_us", 20);  // waking the copy thread and synchronizing with peers
  costs.can_overlap = slowest.can_overlap != 0;
  costs.source = fmt::format("{:.1f} GFLOP/s per rank, {:.1f} GB/s; {} cores for {} ranks{}", gflops, copy_gbs,
                             slowest.cores, owner.ranks().node_size,
                             costs.can_overlap ? "" : ": no core is left for copies");
  return costs;
}

}  // namespace

// ---- counters ----

host_counters::host_counters(communicator& owner, std::uint64_t stage_bytes)
    : m_owner(owner), m_lines(owner, sizeof(counter_line)) {
  new (m_lines.own()) counter_line{};
  // Collective: every line is initialized before any rank reads it.
  if (stage_bytes > 0) m_stage.emplace(owner, stage_bytes);
}

void host_counters::wait(int peer, const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                         const char* purpose) const {
  wait_until([&] { return counter.load(std::memory_order_acquire) >= value; }, peer, purpose);
}

void host_counters::wait_until_consumed(std::uint64_t run) const {
  for (int peer = 0; peer < m_owner.ranks().size; ++peer)
    if (peer != m_owner.ranks().rank) wait(peer, line(peer).consumed_runs, run, "to read this rank's rows");
}

void host_counters::fail() const noexcept {
  line(m_owner.ranks().rank).failed.store(1, std::memory_order_release);
}

void host_counters::bounded_wait::pause() {
  if (m_backoff.spin()) return;
  const double waited_s = std::chrono::duration<double>(m_backoff.measure()).count();
  m_backoff.pause();
  m_counters.m_owner.check_alive();
  if (m_counters.line(m_peer).failed.load(std::memory_order_acquire) != 0)
    throw make_error(
        ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
        fmt::format("fused_run: rank {} failed while this rank waited for it {}", m_peer, m_purpose),
        "see the error that rank reported");
  if (waited_s > m_counters.m_owner.timeout_s())
    throw make_error(
        ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
        fmt::format("fused_run: waited {:.1f} s for rank {} {}", waited_s, m_peer, m_purpose),
        "check whether that rank is late, hangs or has exited; raise timeout_s if it needs more time");
}

// ---- plans ----

host_plan::host_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : plan(std::move(owner), problem), m_blas(require_blas(*m_owner)), m_product(m_problem, m_blas) {}

void host_plan::finish_setup(std::uint64_t stage_bytes) {
  m_costs = host_costs(*m_owner, m_problem, m_blas);
  choose_schedule();
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
  if (m_is_staged)
    info["notes"].push_back("A was outside the symmetric heap: its rows were first copied to the plan's stage");
  info["libraries"]["blas"] = m_blas.path();
  info["workspace_bytes"] = m_workspace.size() + m_packed.size() + m_product.workspace_bytes() +
                            (m_counters ? m_stage_bytes + sizeof(counter_line) : 0);
}

void host_plan::run(const isthmus_fused_arguments& arguments) {
  m_owner->check_alive();
  m_timeline.clear();
  m_blas.set_threads(threads_per_rank(*m_owner));
  const std::int64_t begin_ns = timeline::now_ns();
  if (m_schedule.is_pipelined)
    run_pipelined_or_abort(arguments);
  else
    run_sequential(arguments);
  m_measured_us[arguments.view] = static_cast<double>(timeline::now_ns() - begin_ns) / 1e3;
}

void host_plan::run_pipelined_or_abort(const isthmus_fused_arguments& arguments) {
  try {
    run_pipelined(arguments);
  } catch (const error& failure) {
    m_counters->fail();
    abort(failure);
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
    if (m_copy_failure) abort(*m_copy_failure);
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
        m_problem.is_gather() ? group.source : m_problem.previous(), "to deliver what the next product needs");
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
