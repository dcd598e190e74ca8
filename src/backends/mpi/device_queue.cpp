#include "backends/mpi/device_queue.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "base/tables.hpp"

namespace isthmus::mpi {
namespace {

constexpr std::size_t event_pool_size = 256;  // operations in flight before enqueue blocks

struct word_pool {
  std::mutex mutex;
  std::map<device_driver*, std::vector<std::uint32_t*>> free;

  static word_pool& get() {
    static auto* const pool = new word_pool;
    return *pool;
  }
};

}  // namespace

release_word::release_word(device_driver& driver) : m_driver(driver) {
  {
    word_pool& pool = word_pool::get();
    const std::lock_guard lock(pool.mutex);
    auto& words = pool.free[&driver];
    if (!words.empty()) {
      m_word = words.back();
      words.pop_back();
      return;
    }
  }
  m_word = static_cast<std::uint32_t*>(driver.allocate_host(sizeof(std::uint32_t)));
  *m_word = 0;
}

release_word::~release_word() {
  word_pool& pool = word_pool::get();
  const std::lock_guard lock(pool.mutex);
  pool.free[&m_driver].push_back(m_word);
}

device_queue::device_queue(const isthmus_backend_context& context, device_driver& driver, isthmus_mpi_comm comm,
                           std::uint64_t chunk_bytes, device_buffers buffers)
    : m_context(context),
      m_driver(driver),
      m_calls(context, comm),
      m_buffers(buffers),
      m_needs_flush(buffers != device_buffers::never && driver.needs_flush(context.device.ordinal)),
      m_pipeline(context, &driver, "mpi", *this, pinned_growth::never, chunk_bytes),
      m_join_event(driver, context.device.ordinal),
      m_word(driver),
      m_issued_sequence(m_word.value()),
      m_finished_sequence(m_issued_sequence) {
  for (std::size_t i = 0; i < event_pool_size; ++i) m_free_events.emplace_back(driver, context.device.ordinal);
  m_thread = std::thread([this] { run_thread(); });
}

device_queue::~device_queue() {
  {
    const std::lock_guard lock(m_mutex);
    m_is_stopping = true;
  }
  m_changed.notify_all();
  m_thread.join();
}

bool device_queue::check_stream(native_stream stream) {
  m_pipeline.gate().check(stream);
  if (m_buffers == device_buffers::never) return true;
  const bool is_blocking = m_driver.is_blocking(m_context.device.ordinal, stream);
  if (is_blocking && m_buffers == device_buffers::always)
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                     "stream must be non-blocking if MPI gets device buffers: the legacy default stream and "
                     "streams that wait for it deadlock with MPI's copies of device buffers",
                     "create the stream with StreamNonBlocking, or set backend.mpi.buffers = 'auto'");
  return is_blocking;
}

void device_queue::make_stream_wait(native_stream stream, std::uint32_t sequence) {
  const int device = m_context.device.ordinal;
  if (m_needs_flush) return m_driver.wait_word_and_flush(device, m_word.address(), sequence, stream);
  m_driver.wait_word(device, m_word.address(), sequence, stream);
}

device_queue::task device_queue::make_task(const isthmus_operation* operations, std::size_t n) const {
  task work;
  for (std::size_t i = 0; i < n; ++i)
    work.operations.push_back(copy_operation(operations[i], m_context.rank, m_context.size, work.arrays));
  return work;
}

void device_queue::check_failure() const {
  if (is_aborted()) throw aborted_error(ISTHMUS_HERE);
  if (m_failure) throw error(*m_failure);
}

void device_queue::enqueue(const isthmus_operation* operations, std::size_t n) {
  task work = make_task(operations, n);
  std::vector<native_stream> streams;
  for (const isthmus_operation& operation : work.operations)
    if (std::ranges::find(streams, operation.stream) == streams.end()) streams.push_back(operation.stream);
  for (const native_stream stream : streams) work.is_staged = check_stream(stream) || work.is_staged;
  std::unique_lock lock(m_mutex);
  check_failure();
  while (m_free_events.empty() && !is_aborted()) m_changed.wait_for(lock, std::chrono::milliseconds(20));
  if (m_free_events.empty()) throw aborted_error(ISTHMUS_HERE);
  work.sequence = m_issued_sequence + 1;
  // The first stream joins the others, so one event covers the earlier work of all streams of a group.
  for (std::size_t i = 1; i < streams.size(); ++i) {
    m_driver.record(m_context.device.ordinal, m_join_event, streams[i]);
    m_driver.wait(m_context.device.ordinal, streams.front(), m_join_event);
  }
  m_driver.record(m_context.device.ordinal, m_free_events.back(), streams.front());
  for (const native_stream stream : streams) make_stream_wait(stream, work.sequence);
  work.event = std::move(m_free_events.back());
  m_free_events.pop_back();
  ++m_issued_sequence;
  m_tasks.push_back(std::move(work));
  m_changed.notify_all();
}

void device_queue::check() {
  const std::lock_guard lock(m_mutex);
  if (m_failure) throw error(*m_failure);
}

void device_queue::synchronize() {
  std::unique_lock lock(m_mutex);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                             std::chrono::duration<double>(std::min(m_context.timeout_s, 1e8)));
  while (m_finished_sequence != m_issued_sequence && !is_aborted() &&
         std::chrono::steady_clock::now() < deadline)
    m_changed.wait_for(lock, std::chrono::milliseconds(20));
  if (m_finished_sequence != m_issued_sequence) {
    if (is_aborted()) throw aborted_error(ISTHMUS_HERE);
    throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                     fmt::format("operations over MPI did not complete within {} s", m_context.timeout_s),
                     "look for a missing or stuck rank; raise timeout_s if the ranks are only slow");
  }
  if (m_failure) throw error(*m_failure);
}

void device_queue::abort() {
  m_changed.notify_all();
  m_calls.abort();
}

// MPI libraries that access device buffers use the current device of the thread.
void device_queue::run_thread() {
  const auto run_tasks = [this](const auto& execute_task) {
    std::unique_lock lock(m_mutex);
    while (true) {
      m_changed.wait(lock, [this] { return m_is_stopping || !m_tasks.empty(); });
      if (m_tasks.empty()) return;
      task work = std::move(m_tasks.front());
      m_tasks.pop_front();
      // After a failure, release the streams without accessing the buffers, so that nothing hangs.
      const bool has_failed = m_failure.has_value() || is_aborted();
      lock.unlock();
      std::optional<error> failure;
      if (!has_failed) failure = execute_task(work);
      m_word.set(work.sequence);
      lock.lock();
      if (!m_failure) m_failure = std::move(failure);
      m_free_events.push_back(std::move(work.event));
      m_finished_sequence = work.sequence;
      m_changed.notify_all();
    }
  };
  try {
    m_driver.run_on_device(m_context.device.ordinal,
                           [&] { run_tasks([this](const task& work) { return try_execute(work); }); });
  } catch (const error& no_device) {
    run_tasks([&](const task&) { return no_device; });
  }
}

std::optional<error> device_queue::try_execute(const task& work) {
  try {
    execute(work);
    return std::nullopt;
  } catch (...) {
    std::optional<error> failure = current_error();
    m_calls.cancel();
    m_pipeline.drain();  // after the error, no copy accesses the caller's buffers
    return failure;
  }
}

// The point-to-point operations of a group start first and progress while the collectives run in order.
void device_queue::execute(const task& work) {
  m_pipeline.gate().wait_for(work.event);
  m_stages_task = work.is_staged;
  m_pipeline.start_messages(work.operations);
  for (const isthmus_operation& operation : work.operations)
    if (!is_point_to_point(operation.collective)) m_pipeline.run_collective(operation);
  m_pipeline.finish_messages();
}

void device_queue::start_messages(std::span<const isthmus_operation> messages) {
  for (const isthmus_operation& message : messages) m_calls.start(message);
}

bool device_queue::accepts_device_buffers(const isthmus_operation& operation) const {
  return m_buffers != device_buffers::never &&
         (!row_of(operation.collective).is_reduction ||
          m_context.mpi->has_native_reduction(operation.datatype, operation.op) != 0);
}

// Streams that wait for the default stream need staging. The function table would copy the other buffers on the host, because MPI has no matching in-place form.
bool device_queue::needs_staging(const isthmus_operation& operation, const block_map& blocks) const {
  const collective_row& row = row_of(operation.collective);
  return m_stages_task || overwrites_unsent_data(operation) ||
         (row.is_reduction && row.in_place == alias_rule::send_block && is_in_place(operation, blocks));
}

}  // namespace isthmus::mpi
