#include "staging_queue.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "backends/mpi/divide.hpp"

namespace isthmus::hybrid {
namespace {

constexpr std::size_t event_pool_size = 256;  // operations in flight before enqueue blocks

const char* name_of(isthmus_collective collective) { return row_of(collective).name; }

// Returns true if the MPI function table would copy these buffers on the host, because MPI has no matching
// in-place form (see include/isthmus/mpi/collectives.hpp).
bool needs_host_copy(const isthmus_operation& operation, const block_map& blocks) {
  const bool sends_block = row_of(operation.collective).in_place == alias_rule::send_block;
  return overwrites_unsent_data(operation) ||
         (row_of(operation.collective).is_reduction && sends_block && is_in_place(operation, blocks));
}

// Returns true if the operation can be split into chunks of elements, each of which is a separate operation.
bool is_elementwise(const isthmus_operation& operation) {
  const collective_row& row = row_of(operation.collective);
  return row.send_extent == extent::count && row.recv_extent == extent::count;
}

}  // namespace

std::byte* staging_queue::host_buffer::get(std::size_t bytes) {
  if (bytes <= m_capacity) return m_pinned;
  if (m_ordinary.size() < bytes) m_ordinary.resize(bytes);
  return m_ordinary.data();
}

staging_queue::staging_queue(const isthmus_backend_context& context, const device_runtime& runtime,
                             isthmus_mpi_comm comm, std::uint64_t chunk_bytes, bool uses_device_buffers)
    : m_context(context),
      m_runtime(runtime),
      m_comm(comm),
      m_chunk_bytes(chunk_bytes),
      m_uses_device_buffers(uses_device_buffers),
      m_needs_flush(uses_device_buffers && runtime.can_flush(context.device.ordinal)) {}

staging_queue::task_failure staging_queue::check_device(int error, const char* call) const {
  if (error == 0) return {};
  return {ISTHMUS_ERROR_BACKEND, error, std::string(call) + ": " + m_runtime.get_error_string(error)};
}

staging_queue::task_failure staging_queue::check_mpi(int code, const char* call) const {
  if (code == 0) return {};
  char text[512] = "";
  m_context.mpi->error_string(code, text, sizeof(text));
  return {ISTHMUS_ERROR_BACKEND, code, std::string(call) + " in MPI: " + text};
}

isthmus_status staging_queue::report(const task_failure& failure) const {
  if (failure.status == ISTHMUS_SUCCESS) return ISTHMUS_SUCCESS;
  return m_context.fail(m_context.runtime, failure.status, failure.native_code,
                        "src/backends/hybrid/staging_queue.cpp",
                        "change the threshold or the rule that selects hybrid to use another backend", "%s",
                        failure.message.c_str());
}

isthmus_status staging_queue::start() {
  task_failure first_failure;
  const auto check = [&](int error, const char* call) {
    if (first_failure.status == ISTHMUS_SUCCESS) first_failure = check_device(error, call);
  };
  check(m_runtime.set_device(m_context.device.ordinal), "SetDevice");
  check(m_runtime.stream_create(&m_in_stream, gpu::non_blocking_stream), "StreamCreate");
  check(m_runtime.stream_create(&m_out_stream, gpu::non_blocking_stream), "StreamCreate");
  check(m_runtime.event_create(&m_copy_in_event, gpu::event_without_timing), "EventCreate");
  for (void*& event : m_copy_out_events)
    check(m_runtime.event_create(&event, gpu::event_without_timing), "EventCreate");
  void* word = nullptr;
  check(m_runtime.host_alloc(&word, sizeof(std::uint32_t), 0), "HostAlloc");
  for (host_buffer* memory : all_buffers()) {
    void* pinned = nullptr;
    check(m_runtime.host_alloc(&pinned, m_chunk_bytes, 0), "HostAlloc");
    if (pinned != nullptr) memory->set_pinned(pinned, m_chunk_bytes);
  }
  for (std::size_t i = 0; i < event_pool_size; ++i) {
    void* event = nullptr;
    check(m_runtime.event_create(&event, gpu::event_without_timing), "EventCreate");
    if (event != nullptr) m_free_events.push_back(event);
  }
  m_release_word = static_cast<std::uint32_t*>(word);
  if (first_failure.status != ISTHMUS_SUCCESS) return report(first_failure);
  *m_release_word = 0;
  m_thread = std::thread([this] { run_thread(); });
  return ISTHMUS_SUCCESS;
}

staging_queue::~staging_queue() {
  {
    const std::lock_guard lock(m_mutex);
    m_is_stopping = true;
  }
  m_changed.notify_all();
  if (m_thread.joinable()) m_thread.join();
  for (void* event : m_free_events) m_runtime.event_destroy(event);
  for (void* event : {m_copy_in_event, m_copy_out_events[0], m_copy_out_events[1]})
    if (event != nullptr) m_runtime.event_destroy(event);
  for (void* stream : {m_in_stream, m_out_stream})
    if (stream != nullptr) m_runtime.stream_destroy(stream);
  for (const host_buffer* memory : all_buffers())
    if (memory->pinned() != nullptr) m_runtime.host_free(memory->pinned());
  if (m_release_word != nullptr) m_runtime.host_free(m_release_word);
}

isthmus_status staging_queue::check_stream(void* stream) const {
  unsigned flags = 0;
  task_failure failure = check_device(m_runtime.stream_get_flags(stream, &flags), "StreamGetFlags");
  if (failure.status == ISTHMUS_SUCCESS && (flags & gpu::non_blocking_stream) == 0)
    failure = {ISTHMUS_ERROR_INVALID_USAGE, 0,
               "stream must be non-blocking with backend.hybrid.buffers = 'device': the legacy default stream "
               "and streams that wait for it deadlock with MPI's copies of device buffers; create the stream "
               "with StreamNonBlocking"};
  return report(failure);
}

isthmus_status staging_queue::enqueue(const isthmus_operation* operations, std::size_t n) {
  if (m_uses_device_buffers)
    if (const auto status = check_stream(operations[0].stream); status != ISTHMUS_SUCCESS) return status;
  task work;
  for (std::size_t i = 0; i < n; ++i) {
    work.operations.push_back(operations[i]);
    for (const std::uint64_t* isthmus_operation::* array :
         {&isthmus_operation::send_counts, &isthmus_operation::send_displs, &isthmus_operation::recv_counts,
          &isthmus_operation::recv_displs}) {
      const std::uint64_t*& pointer = work.operations.back().*array;
      if (pointer != nullptr) pointer = work.arrays.emplace_back(pointer, pointer + m_context.size).data();
    }
  }
  std::unique_lock lock(m_mutex);
  if (is_stopped()) return report({ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"});
  if (m_first_failure.status != ISTHMUS_SUCCESS) return report(m_first_failure);
  m_changed.wait(lock, [this] { return !m_free_events.empty() || is_stopped(); });
  if (m_free_events.empty()) return report({ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"});
  work.event = m_free_events.back();
  work.sequence = m_issued_sequence + 1;
  void* const stream = operations[0].stream;
  task_failure first_failure = check_device(m_runtime.event_record(work.event, stream), "EventRecord");
  if (first_failure.status == ISTHMUS_SUCCESS)
    first_failure = check_device(m_runtime.wait_value(stream, m_release_word, work.sequence, m_needs_flush),
                                 "StreamWaitValue32");
  if (first_failure.status != ISTHMUS_SUCCESS) return report(first_failure);
  m_free_events.pop_back();
  ++m_issued_sequence;
  m_tasks.push_back(std::move(work));
  m_changed.notify_all();
  return ISTHMUS_SUCCESS;
}

isthmus_status staging_queue::poll() {
  const std::lock_guard lock(m_mutex);
  return report(m_first_failure);
}

isthmus_status staging_queue::synchronize() {
  std::unique_lock lock(m_mutex);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                             std::chrono::duration<double>(std::min(m_context.timeout_s, 1e8)));
  while (m_finished_sequence != m_issued_sequence && !is_stopped() &&
         std::chrono::steady_clock::now() < deadline)
    m_changed.wait_for(lock, std::chrono::milliseconds(20));
  if (m_finished_sequence == m_issued_sequence) return report(m_first_failure);
  if (is_stopped()) return report({ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"});
  return report({ISTHMUS_ERROR_TIMEOUT, 0, "operations over MPI did not complete within the timeout"});
}

void staging_queue::abort() {
  m_is_aborted = true;
  m_changed.notify_all();
  if (!m_is_inside_mpi) return;
  m_context.log(m_context.runtime, 2,
                "rank %d is inside an MPI collective, which MPI cannot cancel: ending the job with MPI_Abort",
                m_context.rank);
  m_context.mpi->comm_abort(m_comm, ISTHMUS_ERROR_ABORTED);
}

void staging_queue::run_thread() {
  m_runtime.set_device(m_context.device.ordinal);
  std::unique_lock lock(m_mutex);
  while (true) {
    m_changed.wait(lock, [this] { return m_is_stopping || !m_tasks.empty(); });
    if (m_tasks.empty()) return;
    const task work = std::move(m_tasks.front());
    m_tasks.pop_front();
    const bool has_failed = m_first_failure.status != ISTHMUS_SUCCESS || is_stopped();
    lock.unlock();
    // After a failure, release the streams without accessing the buffers, so that nothing hangs.
    const task_failure result = has_failed ? task_failure{} : run(work);
    std::atomic_ref<std::uint32_t>(*m_release_word).store(work.sequence, std::memory_order_release);
    lock.lock();
    if (m_first_failure.status == ISTHMUS_SUCCESS) m_first_failure = result;
    m_free_events.push_back(work.event);
    m_finished_sequence = work.sequence;
    m_changed.notify_all();
  }
}

// This wait has no timeout, because the program's work before the event may take a long time. Only an abort
// ends it early.
staging_queue::task_failure staging_queue::wait_for(void* event) const {
  int spins = 0;
  while (true) {
    const int state = m_runtime.event_query(event);
    if (state == 0) return {};
    if (state != gpu::not_ready) return check_device(state, "work in the stream before the operation");
    if (is_stopped()) return {ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"};
    if (++spins > 2000) std::this_thread::sleep_for(std::chrono::microseconds(5));
  }
}

staging_queue::task_failure staging_queue::copy(void* to, const void* from, std::size_t bytes,
                                                void* stream) const {
  if (bytes == 0) return {};
  return check_device(m_runtime.memcpy_async(to, from, bytes, gpu::memcpy_default, stream), "MemcpyAsync");
}

staging_queue::task_failure staging_queue::record_and_wait(void* event, void* stream) const {
  const task_failure failure = check_device(m_runtime.event_record(event, stream), "EventRecord");
  return failure.status == ISTHMUS_SUCCESS ? wait_for(event) : failure;
}

// The point-to-point operations of a group start first and progress while the collectives run in order.
staging_queue::task_failure staging_queue::run(const task& work) {
  if (task_failure failure = wait_for(work.event); failure.status != ISTHMUS_SUCCESS) return failure;
  std::vector<mpi_step> messages, collectives;
  for (const isthmus_operation& operation : work.operations) {
    if (!is_point_to_point(operation.collective))
      append_steps(operation, collectives);
    else if (operation.count != 0)
      messages.push_back(make_step(operation));
  }
  std::vector<void*> open_requests;
  task_failure first_failure = start_messages(messages, open_requests);
  if (first_failure.status == ISTHMUS_SUCCESS) first_failure = run_collectives(collectives);
  if (first_failure.status == ISTHMUS_SUCCESS) first_failure = finish_messages(messages, open_requests);
  for (void*& request : open_requests)
    m_context.mpi->cancel(&request);  // nothing may write to the buffers after a failure
  return first_failure;
}

bool staging_queue::passes_device_buffers(const isthmus_operation& operation) const {
  return m_uses_device_buffers && (!row_of(operation.collective).is_reduction ||
                                   m_context.mpi->has_native_reduction(operation.datatype, operation.op) != 0);
}

staging_queue::mpi_step staging_queue::make_step(const isthmus_operation& operation) const {
  const block_map blocks(operation, m_context.rank, m_context.size);
  mpi_step step{operation, blocks, !passes_device_buffers(operation) || needs_host_copy(operation, blocks), 0};
  step.operation.stream = nullptr;
  if (step.is_staged)
    step.in_bytes = step.blocks.send_bytes();
  else if (operation.collective == ISTHMUS_BROADCAST && operation.send_buf != operation.recv_buf)
    step.in_bytes = step.blocks.send_bytes();  // the root's result, from which MPI sends
  return step;
}

void staging_queue::append_steps(const isthmus_operation& operation, std::vector<mpi_step>& steps) const {
  mpi_step full_step = make_step(operation);
  const std::uint64_t element = full_step.blocks.element_bytes;
  if (!is_elementwise(operation) || passes_device_buffers(operation) ||
      operation.count * element <= m_chunk_bytes)
    return steps.push_back(full_step);
  const std::uint64_t chunk_elements = m_chunk_bytes / element;
  for (std::uint64_t begin = 0; begin < operation.count; begin += chunk_elements) {
    isthmus_operation chunk = operation;
    chunk.count = std::min(chunk_elements, operation.count - begin);
    if (full_step.blocks.send_bytes() != 0)
      chunk.send_buf = static_cast<const std::byte*>(operation.send_buf) + begin * element;
    if (full_step.blocks.recv_bytes() != 0)
      chunk.recv_buf = static_cast<std::byte*>(operation.recv_buf) + begin * element;
    steps.push_back(make_step(chunk));
  }
}

// While MPI executes one step, the next is copied in and the previous one is copied out, with two slots each.
staging_queue::task_failure staging_queue::run_collectives(const std::vector<mpi_step>& steps) {
  task_failure first_failure;
  if (!steps.empty()) first_failure = copy_in(steps[0], 0);
  for (std::size_t i = 0; i < steps.size() && first_failure.status == ISTHMUS_SUCCESS; ++i) {
    if (steps[i].in_bytes != 0) first_failure = record_and_wait(m_copy_in_event, m_in_stream);
    if (first_failure.status == ISTHMUS_SUCCESS && i + 1 < steps.size())
      first_failure = copy_in(steps[i + 1], (i + 1) % 2);
    if (first_failure.status == ISTHMUS_SUCCESS && i >= 2) first_failure = wait_for(m_copy_out_events[i % 2]);
    if (first_failure.status == ISTHMUS_SUCCESS) first_failure = call_mpi(steps[i], i % 2);
    if (first_failure.status == ISTHMUS_SUCCESS) first_failure = copy_out(steps[i], i % 2);
  }
  for (void* event : m_copy_out_events)
    if (first_failure.status == ISTHMUS_SUCCESS) first_failure = wait_for(event);
  return first_failure;
}

staging_queue::task_failure staging_queue::copy_in(const mpi_step& step, std::size_t slot) {
  void* const to = step.is_staged ? m_send[slot].get(step.in_bytes) : step.operation.recv_buf;
  return copy(to, step.operation.send_buf, step.in_bytes, m_in_stream);
}

staging_queue::task_failure staging_queue::call_mpi(const mpi_step& step, std::size_t slot) {
  isthmus_operation call = step.operation;
  if (step.is_staged) {
    call.send_buf = m_send[slot].get(step.in_bytes);
    call.recv_buf = m_recv[slot].get(step.blocks.recv_bytes());
  } else if (step.in_bytes != 0) {
    call.send_buf = call.recv_buf;
  }
  const bool averages = row_of(call.collective).is_reduction && call.op == ISTHMUS_AVG;
  if (averages) call.op = ISTHMUS_SUM;
  m_is_inside_mpi = true;
  const int code = m_context.mpi->collective(m_comm, &call);
  m_is_inside_mpi = false;
  if (code != 0) return check_mpi(code, name_of(call.collective));
  if (averages && step.blocks.recv_bytes() != 0)
    mpi::divide(call.recv_buf, call.count, call.datatype, m_context.size);
  return {};
}

// Gaps between the blocks of a v-collective are not written.
staging_queue::task_failure staging_queue::copy_out(const mpi_step& step, std::size_t slot) {
  const std::uint64_t recv_bytes = step.blocks.recv_bytes();
  if (!step.is_staged || recv_bytes == 0) return {};
  const std::byte* const from = m_recv[slot].get(recv_bytes);
  const auto copy_block = [&](const block& source) {
    return copy(static_cast<std::byte*>(step.operation.recv_buf) + source.offset, from + source.offset,
                source.bytes, m_out_stream);
  };
  task_failure failure;
  if (step.blocks.recv.shape != extent::counts)
    failure = copy_block({0, recv_bytes});
  else
    for (int peer = 0; peer < m_context.size && failure.status == ISTHMUS_SUCCESS; ++peer)
      failure = copy_block(step.blocks.incoming_block(peer));
  if (failure.status != ISTHMUS_SUCCESS) return failure;
  return check_device(m_runtime.event_record(m_copy_out_events[slot], m_out_stream), "EventRecord");
}

staging_queue::task_failure staging_queue::start_messages(const std::vector<mpi_step>& messages,
                                                          std::vector<void*>& open_requests) {
  std::uint64_t in_bytes = 0, out_bytes = 0;
  for (const mpi_step& message : messages) in_bytes += message.in_bytes, out_bytes += message.out_bytes();
  std::byte* const staged_begin = m_message_send.get(in_bytes);
  std::byte* send = staged_begin;
  std::byte* recv = m_message_recv.get(out_bytes);
  task_failure first_failure;
  for (const mpi_step& message : messages) {
    if (first_failure.status == ISTHMUS_SUCCESS)
      first_failure = copy(send, message.operation.send_buf, message.in_bytes, m_in_stream);
    send += message.in_bytes;
  }
  if (first_failure.status == ISTHMUS_SUCCESS && in_bytes != 0)
    first_failure = record_and_wait(m_copy_in_event, m_in_stream);
  send = staged_begin;
  for (const mpi_step& message : messages) {
    if (first_failure.status != ISTHMUS_SUCCESS) break;
    isthmus_operation call = message.operation;
    if (message.is_staged) call.send_buf = send, call.recv_buf = recv;
    send += message.in_bytes;
    recv += message.out_bytes();
    void* request = nullptr;
    first_failure = check_mpi(m_context.mpi->start(m_comm, &call, &request), name_of(call.collective));
    if (first_failure.status == ISTHMUS_SUCCESS) open_requests.push_back(request);
  }
  return first_failure;
}

staging_queue::task_failure staging_queue::finish_messages(const std::vector<mpi_step>& messages,
                                                           std::vector<void*>& open_requests) {
  task_failure first_failure;
  while (!open_requests.empty() && first_failure.status == ISTHMUS_SUCCESS) {
    std::erase_if(open_requests, [&](void*& request) {
      int done = 0;
      if (first_failure.status == ISTHMUS_SUCCESS)
        first_failure = check_mpi(m_context.mpi->test(&request, &done), "point-to-point operation");
      return done != 0;
    });
    if (is_stopped()) first_failure = {ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"};
  }
  std::uint64_t out_bytes = 0;
  for (const mpi_step& message : messages) out_bytes += message.out_bytes();
  const std::byte* recv = m_message_recv.get(out_bytes);
  for (const mpi_step& message : messages) {
    if (first_failure.status == ISTHMUS_SUCCESS)
      first_failure = copy(message.operation.recv_buf, recv, message.out_bytes(), m_out_stream);
    recv += message.out_bytes();
  }
  return first_failure.status == ISTHMUS_SUCCESS && out_bytes != 0
             ? record_and_wait(m_copy_out_events[0], m_out_stream)
             : first_failure;
}

}  // namespace isthmus::hybrid
