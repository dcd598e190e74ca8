#include "operators/fused/device/plan.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"
#include "failure/wait.hpp"

namespace isthmus::fused {
namespace {

// Flags of different writers do not share cache lines.
signal_channel::layout layout_for(int size) { return {1, static_cast<std::size_t>(size), 32}; }

}  // namespace

shared_memory::shared_memory(communicator& owner, device_driver& driver, std::uint64_t stage_bytes)
    : m_rank(owner.ranks().rank),
      m_size(owner.ranks().size),
      m_stage_bytes(stage_bytes),
      m_flags(owner, layout_for(m_size).words() * sizeof(std::uint32_t)),
      m_channel(m_flags.peers(), layout_for(m_size)),
      m_monitor(driver, owner.ranks().device.ordinal, m_channel.words(),
                {stream_priority::high, stream_priority::normal}) {
  const int device = owner.ranks().device.ordinal;
  m_monitor.attach(m_channel, m_rank);
  const owned_stream stream(driver, device, stream_priority::high);
  driver.fill(device, m_flags.own(), 0, m_channel.words() * sizeof(std::uint32_t), stream);
  driver.synchronize(device, stream);
  m_stage.emplace(owner, stage_bytes);  // collective: all flags are zero before any rank writes them
}

void shared_memory::release_all() {
  // Larger than every number that a run still waits for, but small enough that the difference does not wrap.
  constexpr std::uint32_t ahead = std::uint32_t{1} << 30;
  std::vector<word_step> flags;
  for (int peer = 0; peer < m_size; ++peer)
    for (std::uint32_t* flag : {ready(m_rank, peer), done(m_rank, peer)})
      flags.push_back({word_action::write, flag, ahead});
  m_monitor.write(flags);
}

device_plan::device_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : plan(std::move(owner), problem),
      m_libraries(find_libraries(*m_owner)),
      m_driver(m_libraries.driver),
      m_device(m_owner->ranks().device.ordinal),
      m_product(m_problem, m_driver, m_device, m_libraries.blas),
      m_copy{owned_stream(m_driver, m_device, stream_priority::high), owned_event(m_driver, m_device)},
      m_signal{owned_stream(m_driver, m_device, stream_priority::normal), owned_event(m_driver, m_device)} {
  if (!m_problem.is_traced()) return;
  m_run_start = owned_event(m_driver, m_device, event_timing::on);
  m_run_end = owned_event(m_driver, m_device, event_timing::on);
  m_probe = owned_event(m_driver, m_device, event_timing::on);
}

void device_plan::finish_setup(std::uint64_t stage_bytes) {
  const bool can_pipeline = m_problem.size > 1 && m_problem.moved_bytes() > 0 && m_owner->ranks().nodes == 1 &&
                            m_problem.description.mode != ISTHMUS_FUSED_SEQUENTIAL;
  if (can_pipeline) {
    m_shared.emplace(*m_owner, m_driver, stage_bytes);
    m_costs = measure();
  } else {
    m_costs.product_us = [](std::uint64_t rows) { return static_cast<double>(rows); };
    m_costs.source = "not measured";
    m_costs.is_known = false;
  }
  choose_schedule();
  if (!m_schedule.is_pipelined) {
    m_shared.reset();
    return;
  }
  for (std::size_t index = 0; index < m_schedule.groups.size(); ++index) {
    m_group_events.emplace_back(m_driver, m_device);
    const auto timed_event = [this] { return owned_event(m_driver, m_device, event_timing::on); };
    if (m_problem.is_traced()) m_times.push_back({timed_event(), timed_event(), timed_event(), timed_event()});
  }
  start_watch();
}

void device_plan::start_watch() {
  watch_options options;
  options.timeout = std::chrono::duration<double>(m_owner->timeout_s());
  options.operation = [this] { return oldest_run(); };
  options.has_slow_actions = true;
  options.on_stuck = [this](std::uint64_t) {
    m_owner->abort(
        make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                   fmt::format("fused_run: a run did not end within {:.1f} s: rank {} waits for "
                               "rows of peers, or for peers to fetch its rows",
                               m_owner->timeout_s(), m_problem.rank),
                   "check whether a rank is late, hangs or has exited; raise timeout_s if it needs more time")
            .info());
    return true;
  };
  options.aborted = [this] { return m_owner->is_aborted(); };
  // Repeated until all runs have ended, because a peer whose run is still active may write its own
  // flags in between.
  options.on_abort = [this] {
    m_shared->release_all();
    return all_runs_ended();
  };
  options.on_error = [this](const char* reason) {
    m_owner->abort(make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                              fmt::format("fused_run: rank {}: the device failed: {}", m_problem.rank, reason))
                       .info());
  };
  m_watch.emplace(std::move(options));
}

watched_operation device_plan::oldest_run() {
  const std::lock_guard lock(m_runs_mutex);
  while (!m_runs.empty() && m_driver.is_done(m_runs.front().finished)) {
    m_spare_events.push_back(std::move(m_runs.front()));
    m_runs.pop_front();
  }
  if (m_runs.empty() || !m_driver.is_done(m_runs.front().start)) return {};
  return {m_runs.front().number, {}};
}

bool device_plan::all_runs_ended() {
  oldest_run();
  const std::lock_guard lock(m_runs_mutex);
  return m_runs.empty();
}

device_plan::~device_plan() {
  m_watch.reset();
  m_shared.reset();
}

void device_plan::synchronize() {
  // The watchdog ends late runs, so twice the timeout means that the device itself hangs.
  const double limit_s = 2 * m_owner->timeout_s() + 10;
  const auto is_finished = [&] { return !m_has_run || m_driver.is_done(m_finished); };
  if (!poll_until(is_finished, deadline_after(limit_s), std::chrono::microseconds(50)))
    throw make_error(
        ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
        fmt::format("fused: a run did not end in {:.0f} s, even after its waits were released", limit_s),
        "the device hangs; terminate the process");
  if (m_has_run && !m_has_collected_times) collect_times();
}

void device_plan::close() {
  m_watch.reset();
  m_driver.synchronize(m_device, m_signal.stream);
  m_driver.synchronize(m_device, m_copy.stream);
}

void device_plan::describe(nlohmann::json& info) const {
  plan::describe(info);
  info["libraries"]["blas"] = m_product.library_text();
  info["libraries"]["driver"] = m_driver.version();
  info["workspace_bytes"] =
      m_workspace.bytes() + m_product.workspace_bytes() + (m_shared ? m_shared->stage_bytes() : 0);
}

void device_plan::run(const isthmus_fused_arguments& arguments) {
  m_owner->check_alive();
  const bool is_captured = m_driver.is_capturing(m_device, arguments.stream);
  if (is_captured && !m_problem.is_allreduce())
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     "fused_run: stream is being captured into a graph",
                     "run the plan outside of graphs: each run needs a new number, which a graph would repeat");
  m_view = arguments.view;
  const auto enqueue = [&] {
    return m_schedule.is_pipelined ? enqueue_pipelined(arguments) : enqueue_sequential(arguments);
  };
  if (is_captured) return enqueue();  // an event of a graph cannot be queried
  if (!m_shared) {
    if (m_problem.is_traced()) m_driver.record(m_device, m_run_start, arguments.stream);
    enqueue();
    return end_run(arguments.stream);
  }
  try {
    begin_run(arguments);
    enqueue();
    end_run(arguments.stream);
  } catch (const error& failure) {
    abort(failure);
    throw;
  }
}

void device_plan::begin_run(const isthmus_fused_arguments& arguments) {
  if (m_has_run)
    m_driver.wait(m_device, arguments.stream, m_finished);  // the caller may use a different stream than before
  if (m_problem.is_traced()) m_driver.record(m_device, m_run_start, arguments.stream);
  acquire_events();
  m_start = m_current->start;
  m_driver.record(m_device, m_start, arguments.stream);
  if (arguments.view != ISTHMUS_FUSED_COMPUTE_ONLY) ++m_run_number;
}

void device_plan::end_run(native_stream stream) {
  acquire_events();
  m_finished = m_current->finished;
  if (m_problem.is_traced()) m_driver.record(m_device, m_run_end, stream);
  m_driver.record(m_device, m_finished, stream);
  m_has_run = true;
  m_has_collected_times = false;
  if (!m_watch) return;  // without a watch, the next run can reuse the events
  const std::lock_guard lock(m_runs_mutex);
  m_runs.push_back(std::move(*m_current));
  m_current.reset();
}

// Acquires events for the current run, reusing those of a finished run if possible.
void device_plan::acquire_events() {
  if (m_current) return;
  const std::lock_guard lock(m_runs_mutex);
  if (m_spare_events.empty()) {
    m_current = run_events{0, owned_event(m_driver, m_device), owned_event(m_driver, m_device)};
  } else {
    m_current = std::move(m_spare_events.back());
    m_spare_events.pop_back();
  }
  m_current->number = ++m_last_number;
}

std::byte* device_plan::workspace() {
  if (m_workspace == nullptr) {
    const std::uint64_t bytes = m_problem.description.m * m_problem.moved_row_bytes();
    m_workspace = owned_memory(m_driver, m_device, std::max<std::uint64_t>(bytes, 1));
  }
  return static_cast<std::byte*>(m_workspace.get());
}

void device_plan::copy(void* to, const void* from, std::uint64_t bytes, native_stream stream) {
  const device_copy request{to, from, bytes};
  if (bytes > 0) m_driver.copy(m_device, {&request, 1}, stream);
}

void device_plan::join_side_streams(native_stream stream) {
  for (const side_stream* side : {&m_signal, &m_copy}) {
    m_driver.record(m_device, side->event, side->stream);
    m_driver.wait(m_device, stream, side->event);
  }
}

// ---- timeline -----------------------------------------------------------------------------------------

void device_plan::record_time(owned_event group_times::* event, std::size_t group, native_stream stream) {
  if (!m_times.empty()) m_driver.record(m_device, m_times[group].*event, stream);
}

// Returns the start of the run on the host's clock. Uses the minimum of several measurements, because each is
// late by the time that the host needs to observe an event.
std::int64_t device_plan::run_start_ns() {
  std::int64_t min_ns = std::numeric_limits<std::int64_t>::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    m_driver.record(m_device, m_probe, m_signal.stream);
    m_driver.synchronize(m_device, m_signal.stream);
    const std::int64_t now_ns = timeline::now_ns();
    min_ns =
        std::min(min_ns, now_ns - static_cast<std::int64_t>(1e3 * m_driver.elapsed_us(m_run_start, m_probe)));
  }
  return min_ns;
}

void device_plan::collect_times() {
  m_has_collected_times = true;
  if (!m_problem.is_traced()) return;
  m_measured_us[m_view] = m_driver.elapsed_us(m_run_start, m_run_end);
  if (m_times.empty()) return;
  m_timeline.clear();
  const std::int64_t start_ns = run_start_ns();
  const auto add = [&](trace_track track, std::size_t index, native_event begin, native_event end) {
    const auto time_ns = [&](native_event event) {
      return start_ns + static_cast<std::int64_t>(1e3 * m_driver.elapsed_us(m_run_start, event));
    };
    m_timeline.add({track, name_of(m_schedule.groups[index]), time_ns(begin), time_ns(end)});
  };
  for (std::size_t index = 0; index < m_times.size(); ++index) {
    if (m_view != ISTHMUS_FUSED_COMMUNICATION_ONLY)
      add(trace_track::compute, index, m_times[index].product_begin, m_times[index].product_end);
    if (m_view != ISTHMUS_FUSED_COMPUTE_ONLY && m_schedule.groups[index].waits_for_chunk)
      add(trace_track::copy, index, m_times[index].copy_begin, m_times[index].copy_end);
  }
}

device_plan::device_libraries device_plan::find_libraries(communicator& owner) {
  const isthmus_platform platform = owner.ranks().device.platform;
  const lt_traits& traits = *blaslt::traits_of(platform);
  std::string reason;
  auto* driver = device_driver::get(platform, reason);
  const blaslt* library =
      driver == nullptr ? nullptr : blaslt::get(platform, owner.option(traits.option), reason);
  std::optional<error> missing;
  if (library == nullptr)
    missing = make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE, "fused_plan_create: " + reason,
                         fmt::format("set {} to the path of the library", traits.variable));
  agree(owner.control(), no_value{}, missing, fmt::format("fused_plan_create: {} is missing", traits.name),
        ISTHMUS_ERROR_UNSUPPORTED);
  return {*driver, *library};
}

}  // namespace isthmus::fused
