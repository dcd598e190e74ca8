#include "operators/fused/device/plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"
#include "failure/wait.hpp"

namespace isthmus::fused {
namespace {

constexpr double observation_limit_s = 2;  // of a run that may be one of many launches of a graph

// Flags of different writers do not share cache lines.
signal_channel::layout layout_for(int size) { return {1, static_cast<std::size_t>(size), 32}; }

error hang_error(double limit_s) {
  return make_error(
      ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
      fmt::format("fused: a run did not end in {:.0f} s, even after its waits were released", limit_s),
      "the device hangs; terminate the process");
}

}  // namespace

shared_memory::shared_memory(communicator& owner, device_driver& driver, std::uint64_t buffer_bytes)
    : m_rank(owner.ranks().rank), m_size(owner.ranks().size), m_buffer_bytes(buffer_bytes) {
  const signal_channel::layout layout = layout_for(m_size);
  const auto not_pinned = capture_error([&] { m_signals = signal_memory(driver, m_size, layout.bytes()); });
  const char* const context = "fused_plan_create: signals in host memory are not possible";
  const auto addresses =
      agree(owner.control(), m_signals.address(), not_pinned, context, ISTHMUS_ERROR_UNSUPPORTED);
  const auto not_opened = capture_error([&] {
    m_signals.open(addresses);
    m_channel = signal_channel(m_signals.blocks(), layout);
    for (int target = 0; target < m_size; ++target) signal_channel::write(room(m_rank, target), 1);
  });
  agree(owner.control(), no_value{}, not_opened, context, ISTHMUS_ERROR_UNSUPPORTED);
  m_buffer.emplace(owner, buffer_bytes);
}

void shared_memory::release_all() const {
  constexpr std::uint32_t ahead = std::uint32_t{1} << 30;  // larger than every number of chunks
  for (int peer = 0; peer < m_size; ++peer)
    if (peer != m_rank) {
      signal_channel::write(arrived(m_rank, peer), ahead);
      signal_channel::write(room(m_rank, peer), 1);
    }
}

device_plan::device_plan(std::shared_ptr<communicator> owner, const fused_problem& problem)
    : plan(std::move(owner), problem),
      m_libraries(find_libraries(*m_owner)),
      m_driver(m_libraries.driver),
      m_device(m_owner->ranks().device.ordinal),
      m_product(m_problem, m_driver, m_device, m_libraries.blas),
      m_copy{owned_stream(m_driver, m_device, stream_priority::high), owned_event(m_driver, m_device)},
      m_receive{owned_stream(m_driver, m_device, stream_priority::high), owned_event(m_driver, m_device)},
      m_local{owned_stream(m_driver, m_device, stream_priority::normal), owned_event(m_driver, m_device)},
      m_start(m_driver, m_device),
      m_end(m_driver, m_device),
      m_finished(m_driver, m_device) {
  if (!m_problem.is_traced()) return;
  m_run_start = owned_event(m_driver, m_device, event_timing::on);
  m_run_end = owned_event(m_driver, m_device, event_timing::on);
  m_probe = owned_event(m_driver, m_device, event_timing::on);
}

void device_plan::finish_setup(std::uint64_t buffer_bytes, push_peers peers) {
  m_peers = std::move(peers);
  const bool can_pipeline = m_problem.size > 1 && m_problem.moved_bytes() > 0 && m_owner->ranks().nodes == 1 &&
                            m_problem.description.mode != ISTHMUS_FUSED_SEQUENTIAL;
  if (can_pipeline) {
    m_progress = owned_pinned(m_driver, sizeof(std::uint32_t));
    m_shared.emplace(*m_owner, m_driver, buffer_bytes);
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
  for (std::size_t index = 0; index < m_schedule.groups.size(); ++index)
    m_arrivals.emplace_back(m_driver, m_device);
  const auto timed_event = [this] { return owned_event(m_driver, m_device, event_timing::on); };
  if (m_problem.is_traced())
    for (std::size_t index = 0; index < m_schedule.groups.size(); ++index)
      m_times.push_back({timed_event(), timed_event(), timed_event(), timed_event(), {}});
  start_watch();
}

// ---- watch --------------------------------------------------------------------------------------------

void device_plan::start_watch() {
  watch_options options;
  options.timeout = std::chrono::duration<double>(m_owner->timeout_s());
  options.interval = std::chrono::milliseconds(20);
  options.operation = [this]() -> watched_operation { return {current_run(), {}}; };
  options.has_slow_actions = true;
  options.on_stuck = [this](std::uint64_t number) {
    if (std::chrono::duration<double>(wait_clock::now() - m_last_change).count() < m_owner->timeout_s())
      return true;
    if (is_still_stuck(static_cast<std::uint32_t>(number)))
      report_timeout();
    else
      m_last_change = wait_clock::now();
    return true;
  };
  options.aborted = [this] { return m_owner->is_aborted(); };
  options.on_abort = [this] {
    release_queued_calls([this] { return current_run(); }, [this](std::uint32_t) { m_shared->release_all(); });
    return false;  // the stream may contain more runs
  };
  options.on_error = [this](const char* reason) {
    m_owner->abort(make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                              fmt::format("fused_run: rank {}: the device failed: {}", m_problem.rank, reason))
                       .info());
  };
  m_watch.emplace(std::move(options));
}

std::uint32_t device_plan::current_run() const {
  if (m_progress == nullptr) return 0;
  return std::atomic_ref<std::uint32_t>(*progress_word()).load(std::memory_order_acquire);
}

bool device_plan::is_still_stuck(std::uint32_t number) const {
  return is_executing([this] { return current_run(); }, number,
                      std::min(m_owner->timeout_s(), observation_limit_s));
}

// Returns the ranks from which chunks are missing.
std::vector<int> device_plan::late_sources() const {
  std::vector<int> late;
  for (const int source : m_peers.sources) {
    const auto chunks = std::ranges::count_if(m_schedule.groups, [&](const row_group& group) {
      return group.waits_for_chunk && (!m_problem.is_gather() || group.source == source);
    });
    if (signal_channel::read(m_shared->arrived(m_problem.rank, source)) < static_cast<std::uint32_t>(chunks))
      late.push_back(source);
  }
  return late;
}

void device_plan::report_timeout() {
  const std::vector<int> late = late_sources();
  m_owner->abort(
      make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                 fmt::format("fused_run: a run of rank {} did not end within {:.1f} s{}", m_problem.rank,
                             m_owner->timeout_s(),
                             late.empty() ? std::string()
                                          : fmt::format("; {} are missing from rank(s) {}",
                                                        m_problem.is_gather() ? "rows" : "partial sums",
                                                        fmt::join(late, ", "))),
                 "check whether a rank is late, hangs or has exited; raise timeout_s if it needs more time")
          .info());
}

device_plan::~device_plan() {
  m_watch.reset();
  if (!m_shared || current_run() == 0) return;
  m_progress.abandon();  // the stream hangs and may still write it
  m_shared->abandon_flags();
}

// The watchdog ends late runs, so twice the timeout means that the device itself hangs.
double device_plan::hang_limit_s() const { return 2 * m_owner->timeout_s() + 10; }

void device_plan::synchronize() {
  const auto is_finished = [&] { return !m_has_run || m_driver.is_done(m_finished); };
  if (!poll_until(is_finished, deadline_after(hang_limit_s()), std::chrono::microseconds(50)))
    throw hang_error(hang_limit_s());
  if (m_has_run && !m_has_collected_times) collect_times();
}

// The targets announce room when they no longer use this rank's chunks, by writing to this rank's flags.
void device_plan::wait_for_targets() {
  for (const int target : m_peers.targets)
    m_driver.wait_word(m_device, m_shared->room(m_problem.rank, target), 1, m_copy.stream);
  m_driver.record(m_device, m_copy.event, m_copy.stream);
  const auto is_finished = [&] {
    m_owner->failures().poll();
    return m_driver.is_done(m_copy.event) || m_owner->is_aborted();
  };
  if (poll_until(is_finished, deadline_after(m_owner->timeout_s()), std::chrono::microseconds(50))) return;
  m_owner->abort(make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                            fmt::format("fused_plan_destroy: rank {}: rank(s) {} did not end their last run "
                                        "within {:.1f} s",
                                        m_problem.rank, fmt::join(m_peers.targets, ", "), m_owner->timeout_s()),
                            "check whether a rank is late, hangs or has exited")
                     .info());
}

void device_plan::close() {
  if (m_shared && !m_owner->is_aborted()) wait_for_targets();
  const std::array sides{&m_local, &m_receive, &m_copy};
  for (const side_stream* side : sides) m_driver.record(m_device, side->event, side->stream);
  const auto is_finished = [&] {
    if (m_shared && m_owner->is_aborted()) m_shared->release_all();
    return std::ranges::all_of(sides, [&](const side_stream* side) { return m_driver.is_done(side->event); });
  };
  if (!poll_until(is_finished, deadline_after(hang_limit_s()), std::chrono::microseconds(50)))
    throw hang_error(hang_limit_s());
  m_watch.reset();
}

void device_plan::describe(nlohmann::json& info) const {
  info["libraries"]["blas"] = m_product.library_text();
  info["libraries"]["driver"] = m_driver.version();
  info["workspace_bytes"] =
      m_workspace.bytes() + m_product.workspace_bytes() + (m_shared ? m_shared->buffer_bytes() : 0);
}

void device_plan::run(const isthmus_fused_arguments& arguments) {
  m_owner->check_alive();
  m_is_captured = m_driver.is_capturing(m_device, arguments.stream);
  if (m_is_captured && m_shared && m_owner->ranks().device.platform != ISTHMUS_PLATFORM_CUDA)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     "fused_run: stream is being captured into a graph",
                     "run the plan outside of graphs, or create it with ISTHMUS_FUSED_SEQUENTIAL: on this "
                     "platform, captures may not include the flags of pipelined plans");
  // The caller may use a different stream than before. Captured runs are ordered by the launches of their graph.
  if (m_has_run && !m_is_captured) m_driver.wait(m_device, arguments.stream, m_finished);
  if (!m_is_captured) m_view = arguments.view;
  if (is_timed()) m_driver.record(m_device, m_run_start, arguments.stream);
  try {
    if (m_shared) begin_run(arguments);
    m_schedule.is_pipelined ? enqueue_pipelined(arguments) : enqueue_sequential(arguments);
    if (m_shared) end_run(arguments);
  } catch (const error& failure) {
    if (m_shared) abort(failure);
    throw;
  }
  if (!m_is_captured) finish_run(arguments.stream);
}

void device_plan::begin_run(const isthmus_fused_arguments& arguments) {
  if (arguments.view == ISTHMUS_FUSED_COMPUTE_ONLY) return;
  if (is_timed())
    for (group_times& times : m_times) times.copy_name.clear();
  if (++m_run_number == 0) ++m_run_number;
  m_push_words.clear();
  m_driver.record(m_device, m_start, arguments.stream);
  fork(m_copy);
  fork(m_receive);
  // A launch of a graph does not follow the receive stream of an earlier run, only the caller's stream.
  std::uint32_t* is_idle = m_shared->room(m_problem.rank, m_problem.rank);
  const word_step words[] = {{word_action::wait_equal, is_idle, 1},
                             {word_action::write, is_idle, 0},
                             {word_action::write, progress_word(), m_run_number}};
  m_driver.enqueue_words(m_device, words, m_receive.stream);
}

void device_plan::end_run(const isthmus_fused_arguments& arguments) {
  if (arguments.view == ISTHMUS_FUSED_COMPUTE_ONLY) return;
  join(m_copy, arguments.stream);
  m_driver.record(m_device, m_end, arguments.stream);
  m_driver.wait(m_device, m_receive.stream, m_end);
  std::vector<word_step> words;
  for (const int source : m_peers.sources)
    words.push_back({word_action::write, m_shared->arrived(m_problem.rank, source), 0});
  words.push_back({word_action::write, progress_word(), 0});
  for (const int source : m_peers.sources)
    words.push_back({word_action::write, m_shared->room(source, m_problem.rank), 1});
  words.push_back({word_action::write, m_shared->room(m_problem.rank, m_problem.rank), 1});
  m_driver.enqueue_words(m_device, words, m_receive.stream);
  if (m_is_captured) join(m_receive, arguments.stream);  // a capture must join all streams
}

void device_plan::finish_run(native_stream stream) {
  if (m_problem.is_traced()) m_driver.record(m_device, m_run_end, stream);
  m_driver.record(m_device, m_finished, stream);
  m_has_run = true;
  m_has_collected_times = false;
}

// ---- transfer of chunks -------------------------------------------------------------------------------

// The flags are cleared before the first chunk is counted. A target announces room again after it has received all.
void device_plan::wait_for_room() {
  for (const int target : m_peers.targets) {
    std::uint32_t* room = m_shared->room(m_problem.rank, target);
    m_driver.wait_word(m_device, room, 1, m_copy.stream);
    m_push_words.push_back({word_action::write, room, 0});
  }
}

void device_plan::push_chunk(int target, std::uint32_t chunk, std::byte* to, const std::byte* from,
                             std::size_t group) {
  const row_group& rows = m_schedule.groups[group];
  record_time(&group_times::copy_begin, group, m_copy.stream);
  copy(to, from, rows.rows * m_problem.moved_row_bytes(), m_copy.stream);
  record_time(&group_times::copy_end, group, m_copy.stream);
  if (is_timed())
    m_times[group].copy_name =
        fmt::format("rows {}..{} to rank {}", rows.begin, rows.begin + rows.rows, target);
  m_push_words.push_back({word_action::write, m_shared->arrived(target, m_problem.rank), chunk});
  m_driver.enqueue_words(m_device, m_push_words, m_copy.stream);
  m_push_words.clear();
}

void device_plan::receive_chunk(int source, std::uint32_t chunk, std::size_t group) {
  m_driver.wait_word(m_device, m_shared->arrived(m_problem.rank, source), chunk, m_receive.stream);
  m_driver.record(m_device, m_arrivals[group], m_receive.stream);
}

void device_plan::wait_for_chunk(std::size_t group, native_stream stream) {
  m_driver.wait(m_device, stream, m_arrivals[group]);
}

std::byte* device_plan::workspace() {
  if (m_workspace == nullptr) {
    const std::uint64_t bytes = m_problem.description.m * m_problem.moved_row_bytes();
    m_workspace = owned_memory(m_driver, m_device, std::max<std::uint64_t>(bytes, 1));
  }
  return static_cast<std::byte*>(m_workspace.get());
}

void device_plan::fork(const side_stream& side) { m_driver.wait(m_device, side.stream, m_start); }

void device_plan::join(const side_stream& side, native_stream stream) {
  m_driver.record(m_device, side.event, side.stream);
  m_driver.wait(m_device, stream, side.event);
}

void device_plan::copy(void* to, const void* from, std::uint64_t bytes, native_stream stream) {
  const device_copy request{to, from, bytes};
  if (bytes > 0) m_driver.copy(m_device, {&request, 1}, stream);
}

// ---- timeline -----------------------------------------------------------------------------------------

void device_plan::record_time(owned_event group_times::* event, std::size_t group, native_stream stream) {
  if (is_timed() && !m_times.empty()) m_driver.record(m_device, m_times[group].*event, stream);
}

// Returns the start of the run on the host's clock. Uses the minimum of several measurements, because each is
// late by the time that the host needs to observe an event.
std::int64_t device_plan::run_start_ns() {
  std::int64_t min_ns = std::numeric_limits<std::int64_t>::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    m_driver.record(m_device, m_probe, m_copy.stream);
    m_driver.synchronize(m_device, m_copy.stream);
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
  const auto add = [&](trace_track track, std::string name, native_event begin, native_event end) {
    const auto time_ns = [&](native_event event) {
      return start_ns + static_cast<std::int64_t>(1e3 * m_driver.elapsed_us(m_run_start, event));
    };
    m_timeline.add({track, std::move(name), time_ns(begin), time_ns(end)});
  };
  for (std::size_t index = 0; index < m_times.size(); ++index) {
    if (m_view != ISTHMUS_FUSED_COMMUNICATION_ONLY)
      add(trace_track::compute, name_of(m_schedule.groups[index]), m_times[index].product_begin,
          m_times[index].product_end);
    if (m_view != ISTHMUS_FUSED_COMPUTE_ONLY && !m_times[index].copy_name.empty())
      add(trace_track::copy, m_times[index].copy_name, m_times[index].copy_begin, m_times[index].copy_end);
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
