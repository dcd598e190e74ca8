#include "backends/copy_engine/copy_engine_state.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>

#include "base/error.hpp"
#include "base/tables.hpp"
#include "failure/wait.hpp"

namespace isthmus::copy_engine {
namespace {

using namespace std::chrono_literals;
using seconds = std::chrono::duration<double>;

}  // namespace

// Algorithm `reduce` has no name of its own. Its data passes through the staging slots, so rules
// call it "staged".
const char* const algorithm_names[] = {"staged", "zero_copy", "push", nullptr};

namespace {

std::optional<copy_algorithm> requested_algorithm(int index) {
  return index == ISTHMUS_ANY_ALGORITHM ? std::nullopt : std::optional(static_cast<copy_algorithm>(index));
}

// Returns true for collectives whose block sizes are known to all ranks. reduce_scatter is the
// only supported reduction.
bool is_supported(isthmus_collective collective) {
  const collective_row& row = row_of(collective);
  if (is_point_to_point(collective) || row.send_ranks == buffer_ranks::none || has_private_counts(row))
    return false;
  return !row.is_reduction || (row.send_extent != row.recv_extent && !has_counts(row));
}

// Returns the error text for other collectives, which lists the supported ones.
const char* supported_collectives_text() {
  static const std::string text = [] {
    std::string names;
    for (const auto& row : collective_table::rows)
      if (is_supported(static_cast<isthmus_collective>(&row - collective_table::rows.data())))
        names += (names.empty() ? "" : ", ") + std::string(row.name);
    return "supports only " + names;
  }();
  return text.c_str();
}

bool has_no_senders(const block_map& blocks) {
  for (int source = 0; source < blocks.size; ++source)
    if (blocks.max_incoming_bytes(source) != 0) return false;
  return true;
}

}  // namespace

copy_engine_state::copy_engine_state(const isthmus_backend_context& context, device_driver& driver,
                                     const settings& options)
    : m_context(context),
      m_resources(driver, context.device.ordinal, context.rank, context.size, options),
      m_watchdog(context, m_resources, m_log),
      m_own_stream(driver, context.device.ordinal),
      m_entry_event(driver, context.device.ordinal),
      m_end_event(driver, context.device.ordinal) {
  // Probe the required stream operations: if the device lacks them, creation fails and all ranks
  //   use other backends.
  const word_step probe[] = {{word_action::write, m_resources.progress_word(), 0},
                             {word_action::wait_equal, m_resources.progress_word(), 0}};
  driver.enqueue_words(m_resources.device, probe, m_own_stream);
  driver.synchronize(m_resources.device, m_own_stream);
  m_version = driver.version();
}

void copy_engine_state::open(signal_memory signals, const isthmus_heap_block& staging) {
  m_resources.memory = peer_memory(std::move(signals), staging, m_resources.options.staging_bytes);
  m_watchdog.begin();
}

void copy_engine_state::set_compiler(kernel_compiler& compiler) { m_resources.kernels.set_compiler(compiler); }

// Reasons are never freed, because callers may keep the pointer. There are only a few.
void copy_engine_state::refuse_reductions(const std::string& reason) {
  if (m_unsupported_reductions_reason != nullptr) return;
  static std::mutex mutex;
  static auto* const all = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  m_unsupported_reductions_reason = all->insert(reason).first->c_str();
}

copy_engine_state::~copy_engine_state() {
  if (!m_resources.memory.is_open()) return;
  const auto deadline = deadline_after(std::min(m_context.timeout_s, 30.0));
  bool is_idle_now = false;
  try {
    // The watchdog may still have to release the stream, so it must run until the stream has finished.
    is_idle_now = poll_until([&] { return is_idle(); }, deadline, 1ms);
    m_watchdog.end();
    const auto has_ended = [&] {
      return m_watchdog.has_failed() || m_context.is_aborted(m_context.runtime) != 0 ||
             m_watchdog.are_all_acknowledged();
    };
    poll_until(has_ended, deadline, 100us);
  } catch (const error& exception) {
    m_context.log(m_context.runtime, 1, "destroy: %s", exception.what());
  }
  m_watchdog.end();
  if (is_idle_now) return;
  m_resources.progress.abandon();
  m_resources.memory.abandon_signals();
}

const char* copy_engine_state::supports(const isthmus_operation& operation, int algorithm) const {
  const copy_algorithm requested = requested_algorithm(algorithm).value_or(copy_algorithm::staged);
  if (!is_supported(operation.collective)) return supported_collectives_text();
  if (requested != copy_algorithm::staged)
    if (const char* reason = unsupported_direct_reason(operation.collective)) return reason;
  if (row_of(operation.collective).is_reduction && m_unsupported_reductions_reason != nullptr)
    return m_unsupported_reductions_reason;
  const auto rows = static_cast<std::uint64_t>(std::max(m_context.size - 1, 1));
  if (m_context.size > 1 && m_resources.memory.slot_bytes() < rows * alignment)
    return "backend.copy_engine.staging_bytes is less than 512 bytes per peer; raise it";
  return nullptr;
}

isthmus_status copy_engine_state::report(const call_failure& failure) {
  return m_context.fail(m_context.runtime, failure.status, 0, ISTHMUS_HERE, failure.hint.c_str(), "%s",
                        failure.message.c_str());
}

isthmus_status copy_engine_state::report_driver_error(const char* action, const isthmus_error_info& info) {
  return m_context.fail(m_context.runtime, info.status, info.native_code, info.location, info.hint, "%s: %s",
                        action, info.message);
}

isthmus_status copy_engine_state::enqueue(const isthmus_operation* operations, const int* algorithms,
                                          std::size_t n) {
  if (m_watchdog.has_failed()) return poll();
  try {
    prepare({operations, n});
    for (std::size_t i = 0; i < n; ++i) start(operations[i], requested_algorithm(algorithms[i]));
    return ISTHMUS_SUCCESS;
  } catch (const error& exception) {
    return report_driver_error("enqueue", exception.info());
  }
}

// Must run before any call of a group is issued: loading a kernel may wait for the device, and the work queued
// there may wait for ranks whose calls this thread has not issued yet.
void copy_engine_state::prepare(std::span<const isthmus_operation> operations) {
  for (const isthmus_operation& operation : operations)
    if (row_of(operation.collective).is_reduction && m_context.size > 1 && operation.count > 0)
      m_resources.kernels.prepare(operation.datatype, operation.op);
}

void copy_engine_state::start(const isthmus_operation& operation, std::optional<copy_algorithm> requested) {
  m_blocks = block_map(operation, m_context.rank, m_context.size);
  if (operation.count == 0 && has_no_senders(m_blocks)) return;
  device_driver& driver = m_resources.driver;
  const int device = m_resources.device;
  const bool is_null = is_null_stream(operation.stream);  // the work then uses m_own_stream, between two events
  const bool is_captured = driver.is_capturing(device, operation.stream);
  const native_stream stream = is_null ? m_own_stream : operation.stream;
  if (is_null) {
    driver.record(device, m_entry_event, operation.stream);
    driver.wait(device, stream, m_entry_event);
  }
  // Calls of one communicator are serialized, even if they use different streams. A graph cannot wait for work
  // outside of it, so the application must order graph launches.
  if (!is_captured && m_has_end_event) driver.wait(device, stream, m_end_event);
  m_resources.main.start_on(stream);
  issue(operation, requested, is_captured);
  if (is_captured) return;
  driver.record(device, m_end_event, stream);
  m_has_end_event = true;
  if (is_null) driver.wait(device, operation.stream, m_end_event);
}

// Fills m_buffers. Returns true if the call can use `algorithm`.
bool copy_engine_state::find_buffers(const isthmus_operation& operation, copy_algorithm algorithm) {
  m_buffers.is_valid = false;
  if (algorithm != copy_algorithm::staged)
    find_direct_buffers(m_context, operation, m_blocks, algorithm, m_buffers);
  return m_buffers.is_valid;
}

// push was faster than zero_copy in all measurements; it requires receive buffers in the heap.
copy_algorithm copy_engine_state::choose(const isthmus_operation& operation,
                                         std::optional<copy_algorithm> requested) {
  if (row_of(operation.collective).is_reduction) return copy_algorithm::reduce;
  if (requested) return find_buffers(operation, *requested) ? *requested : copy_algorithm::staged;
  for (const copy_algorithm algorithm : {copy_algorithm::push, copy_algorithm::zero_copy})
    if (find_buffers(operation, algorithm)) return algorithm;
  return copy_algorithm::staged;
}

void copy_engine_state::issue(const isthmus_operation& operation, std::optional<copy_algorithm> requested,
                              bool is_captured) {
  m_record.id = ++m_last_id == 0 ? ++m_last_id : m_last_id;
  const call_request request{m_resources, operation, m_blocks, m_record, m_log, is_captured};
  const copy_algorithm algorithm = choose(operation, requested);
  if (requested && algorithm == copy_algorithm::staged && algorithm != *requested)
    log_staged_fallback(operation.collective, *requested);
  if (algorithm == copy_algorithm::reduce)
    issue_reduce(request,
                 m_context.size == 1 ? nullptr : m_resources.kernels.prepare(operation.datatype, operation.op));
  else if (algorithm == copy_algorithm::staged)
    issue_staged(request);
  else
    issue_direct(request, algorithm, m_buffers);
  m_resources.main.write(m_resources.progress_word(), 0);
  m_resources.main.flush();
}

// Logs once per collective and algorithm, so that the call path formats no text.
void copy_engine_state::log_staged_fallback(isthmus_collective collective, copy_algorithm requested) {
  std::uint32_t& logged = m_logged[static_cast<std::size_t>(requested)];
  if ((logged & 1u << collective) != 0) return;
  logged |= 1u << collective;
  m_context.log(
      m_context.runtime, 2,
      "%s: the rule names %s, but the buffers that peers would access are not in the symmetric heap; using "
      "staged",
      row_of(collective).name, algorithm_names[static_cast<int>(requested)]);
}

isthmus_status copy_engine_state::poll() {
  // A released stream did not complete its work, so success would be wrong. reason() waits until the error
  // may be reported.
  if (m_watchdog.has_failed())
    if (const auto failure = m_watchdog.reason()) return report(*failure);
  return ISTHMUS_SUCCESS;
}

bool copy_engine_state::is_idle() {
  return (!m_has_end_event || m_resources.driver.is_done(m_end_event)) && m_watchdog.current_call() == 0;
}

isthmus_status copy_engine_state::synchronize() {
  try {
    const auto has_ended = [&] {
      return is_idle() || m_watchdog.has_failed() || m_context.is_aborted(m_context.runtime) != 0;
    };
    if (!poll_until(has_ended, deadline_after(m_context.timeout_s), poll_pause(10us, 1000us)))
      return report({ISTHMUS_ERROR_TIMEOUT, "synchronize: the streams did not finish within the timeout",
                     "check for long kernels before or between the collectives, and for a stuck peer"});
    if (!is_idle() && !m_watchdog.has_failed())
      return report({ISTHMUS_ERROR_ABORTED, "the communicator was aborted", ""});
  } catch (const error& exception) {
    return report_driver_error("synchronize", exception.info());
  }
  return poll();
}

void copy_engine_state::abort() { m_watchdog.request_abort(); }

}  // namespace isthmus::copy_engine
