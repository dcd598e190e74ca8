#include "staging_queue.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "backends/mpi/divide.hpp"

namespace isthmus::hybrid {
namespace {

constexpr std::size_t events_in_stock = 256;  // operations in flight before enqueue has to wait for one

const char* name_of(isthmus_collective collective) { return row_of(collective).name; }

// Where the table would copy on the host: mpi/collectives.hpp has no place in MPI's call for these buffers.
bool table_copies(const isthmus_operation& operation, const block_map& blocks) {
  const bool sends_block = row_of(operation.collective).in_place == alias_rule::send_block;
  return overwrites_unsent_data(operation) ||
         (row_of(operation.collective).is_reduction && sends_block && is_in_place(operation, blocks));
}

// May be cut into pieces of elements, each an operation of its own.
bool is_elementwise(const isthmus_operation& operation) {
  const collective_row& row = row_of(operation.collective);
  return row.send_extent == extent::count && row.recv_extent == extent::count;
}

}  // namespace

std::byte* staging::host_memory::get(std::size_t bytes) {
  if (bytes <= m_capacity) return m_pinned;
  if (m_ordinary.size() < bytes) m_ordinary.resize(bytes);
  return m_ordinary.data();
}

staging::staging(const isthmus_backend_context& context, const device_runtime& runtime, isthmus_mpi_comm comm,
                 std::uint64_t piece_bytes, bool device_buffers)
    : m_context(context),
      m_runtime(runtime),
      m_comm(comm),
      m_piece_bytes(piece_bytes),
      m_device_buffers(device_buffers),
      m_flush(device_buffers && runtime.can_flush(context.device.ordinal)) {}

staging::trouble staging::device(int error, const char* what) const {
  if (error == 0) return {};
  return {ISTHMUS_ERROR_BACKEND, error, std::string(what) + ": " + m_runtime.get_error_string(error)};
}

staging::trouble staging::native(int code, const char* what) const {
  if (code == 0) return {};
  char text[512] = "";
  m_context.mpi->error_string(code, text, sizeof(text));
  return {ISTHMUS_ERROR_BACKEND, code, std::string(what) + " in MPI: " + text};
}

isthmus_status staging::report(const trouble& what) const {
  if (what.status == ISTHMUS_SUCCESS) return ISTHMUS_SUCCESS;
  return m_context.fail(
      m_context.runtime, what.status, what.native_code, "src/backends/hybrid/staging_queue.cpp",
      "device buffers went over MPI by rule; raise or lower the threshold to choose otherwise", "%s",
      what.message.c_str());
}

isthmus_status staging::start() {
  trouble first;
  const auto need = [&](int error, const char* what) {
    if (first.status == ISTHMUS_SUCCESS) first = device(error, what);
  };
  need(m_runtime.set_device(m_context.device.ordinal), "SetDevice");
  need(m_runtime.stream_create(&m_in, non_blocking_stream), "StreamCreate");
  need(m_runtime.stream_create(&m_out, non_blocking_stream), "StreamCreate");
  need(m_runtime.event_create(&m_arrived, event_without_timing), "EventCreate");
  for (void*& event : m_left) need(m_runtime.event_create(&event, event_without_timing), "EventCreate");
  void* word = nullptr;
  need(m_runtime.host_alloc(&word, sizeof(std::uint32_t), 0), "HostAlloc");
  for (host_memory* memory : all_memory()) {
    void* pinned = nullptr;
    need(m_runtime.host_alloc(&pinned, m_piece_bytes, 0), "HostAlloc");
    if (pinned != nullptr) memory->adopt(pinned, m_piece_bytes);
  }
  for (std::size_t i = 0; i < events_in_stock; ++i) {
    void* event = nullptr;
    need(m_runtime.event_create(&event, event_without_timing), "EventCreate");
    if (event != nullptr) m_free_events.push_back(event);
  }
  m_word = static_cast<std::uint32_t*>(word);
  if (first.status != ISTHMUS_SUCCESS) return report(first);
  *m_word = 0;
  m_thread = std::thread([this] { serve(); });
  return ISTHMUS_SUCCESS;
}

staging::~staging() {
  {
    const std::lock_guard lock(m_mutex);
    m_stop = true;
  }
  m_changed.notify_all();
  if (m_thread.joinable()) m_thread.join();
  for (void* event : m_free_events) m_runtime.event_destroy(event);
  for (void* event : {m_arrived, m_left[0], m_left[1]})
    if (event != nullptr) m_runtime.event_destroy(event);
  for (void* stream : {m_in, m_out})
    if (stream != nullptr) m_runtime.stream_destroy(stream);
  for (const host_memory* memory : all_memory())
    if (memory->pinned() != nullptr) m_runtime.host_free(memory->pinned());
  if (m_word != nullptr) m_runtime.host_free(m_word);
}

isthmus_status staging::refuse_stream(void* stream) const {
  unsigned flags = 0;
  trouble bad = device(m_runtime.stream_get_flags(stream, &flags), "StreamGetFlags");
  if (bad.status == ISTHMUS_SUCCESS && (flags & non_blocking_stream) == 0)
    bad = {ISTHMUS_ERROR_INVALID_USAGE, 0,
           "stream is the legacy default stream or one that waits for it, and so may MPI's copies of device "
           "buffers "
           "(backend.hybrid.buffers = 'device'): they would wait for each other for ever; make the stream with "
           "StreamNonBlocking"};
  return report(bad);
}

isthmus_status staging::enqueue(const isthmus_operation* operations, std::size_t n) {
  if (m_device_buffers)
    if (const auto status = refuse_stream(operations[0].stream); status != ISTHMUS_SUCCESS) return status;
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
  if (stopped()) return report({ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"});
  if (m_trouble.status != ISTHMUS_SUCCESS) return report(m_trouble);
  m_changed.wait(lock, [this] { return !m_free_events.empty() || stopped(); });
  if (m_free_events.empty()) return report({ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"});
  work.event = m_free_events.back();
  work.sequence = m_issued + 1;
  void* const stream = operations[0].stream;
  trouble first = device(m_runtime.event_record(work.event, stream), "EventRecord");
  if (first.status == ISTHMUS_SUCCESS)
    first = device(m_runtime.wait_value(stream, m_word, work.sequence, m_flush), "StreamWaitValue32");
  if (first.status != ISTHMUS_SUCCESS) return report(first);
  m_free_events.pop_back();
  ++m_issued;
  m_tasks.push_back(std::move(work));
  m_changed.notify_all();
  return ISTHMUS_SUCCESS;
}

isthmus_status staging::poll() {
  const std::lock_guard lock(m_mutex);
  return report(m_trouble);
}

isthmus_status staging::synchronize() {
  std::unique_lock lock(m_mutex);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                             std::chrono::duration<double>(std::min(m_context.timeout_s, 1e8)));
  while (m_finished != m_issued && !stopped() && std::chrono::steady_clock::now() < deadline)
    m_changed.wait_for(lock, std::chrono::milliseconds(20));
  if (m_finished == m_issued) return report(m_trouble);
  if (stopped()) return report({ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"});
  return report({ISTHMUS_ERROR_TIMEOUT, 0, "operations over MPI did not end within the timeout"});
}

void staging::abort() {
  m_aborted = true;
  m_changed.notify_all();
  if (!m_inside_mpi) return;
  m_context.log(m_context.runtime, 2,
                "rank %d is inside an MPI collective, which MPI cannot cancel: ending the job with MPI_Abort",
                m_context.rank);
  m_context.mpi->comm_abort(m_comm, ISTHMUS_ERROR_ABORTED);
}

void staging::serve() {
  m_runtime.set_device(m_context.device.ordinal);
  std::unique_lock lock(m_mutex);
  while (true) {
    m_changed.wait(lock, [this] { return m_stop || !m_tasks.empty(); });
    if (m_tasks.empty()) return;
    const task work = std::move(m_tasks.front());
    m_tasks.pop_front();
    const bool broken = m_trouble.status != ISTHMUS_SUCCESS || stopped();
    lock.unlock();
    // After a failure the streams are let go without touching a buffer: nothing may hang.
    const trouble result = broken ? trouble{} : run(work);
    std::atomic_ref<std::uint32_t>(*m_word).store(work.sequence, std::memory_order_release);
    lock.lock();
    if (m_trouble.status == ISTHMUS_SUCCESS) m_trouble = result;
    m_free_events.push_back(work.event);
    m_finished = work.sequence;
    m_changed.notify_all();
  }
}

// Only abort ends this early: what is before the event in the stream is the program's own and may be long.
staging::trouble staging::wait_for(void* event) const {
  int spins = 0;
  while (true) {
    const int state = m_runtime.event_query(event);
    if (state == 0) return {};
    if (state != runtime_not_ready) return device(state, "the work before the operation");
    if (stopped()) return {ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"};
    if (++spins > 2000) std::this_thread::sleep_for(std::chrono::microseconds(5));
  }
}

staging::trouble staging::copy(void* to, const void* from, std::size_t bytes, void* stream) const {
  if (bytes == 0) return {};
  return device(m_runtime.memcpy_async(to, from, bytes, memcpy_default, stream), "MemcpyAsync");
}

staging::trouble staging::mark_and_wait(void* event, void* stream) const {
  const trouble bad = device(m_runtime.event_record(event, stream), "EventRecord");
  return bad.status == ISTHMUS_SUCCESS ? wait_for(event) : bad;
}

// Point to point of a group starts first and moves on while the collectives run in their order.
staging::trouble staging::run(const task& work) {
  if (trouble late = wait_for(work.event); late.status != ISTHMUS_SUCCESS) return late;
  std::vector<step> peers, collectives;
  for (const isthmus_operation& operation : work.operations) {
    if (!is_point_to_point(operation.collective))
      append_calls(operation, collectives);
    else if (operation.count != 0)
      peers.push_back(step_of(operation));
  }
  std::vector<void*> open;
  trouble first = start_peers(peers, open);
  if (first.status == ISTHMUS_SUCCESS) first = run_collectives(collectives);
  if (first.status == ISTHMUS_SUCCESS) first = finish_peers(peers, open);
  for (void*& request : open) m_context.mpi->cancel(&request);  // after a failure: nothing may write later
  return first;
}

bool staging::goes_as_it_is(const isthmus_operation& operation) const {
  return m_device_buffers && (!row_of(operation.collective).is_reduction ||
                              m_context.mpi->has_native_reduction(operation.datatype, operation.op) != 0);
}

staging::step staging::step_of(const isthmus_operation& operation) const {
  const block_map blocks(operation, m_context.rank, m_context.size);
  step what{operation, blocks, !goes_as_it_is(operation) || table_copies(operation, blocks), 0};
  what.call.stream = nullptr;
  if (what.staged)
    what.in_bytes = what.blocks.send_bytes();
  else if (operation.collective == ISTHMUS_BROADCAST && operation.send_buf != operation.recv_buf)
    what.in_bytes = what.blocks.send_bytes();  // the root's own result; it is then sent from there
  return what;
}

void staging::append_calls(const isthmus_operation& operation, std::vector<step>& steps) const {
  step whole = step_of(operation);
  const std::uint64_t element = whole.blocks.element_bytes;
  if (!is_elementwise(operation) || goes_as_it_is(operation) || operation.count * element <= m_piece_bytes)
    return steps.push_back(whole);
  const std::uint64_t per_piece = m_piece_bytes / element;
  for (std::uint64_t first = 0; first < operation.count; first += per_piece) {
    isthmus_operation piece = operation;
    piece.count = std::min(per_piece, operation.count - first);
    if (whole.blocks.send_bytes() != 0)
      piece.send_buf = static_cast<const std::byte*>(operation.send_buf) + first * element;
    if (whole.blocks.recv_bytes() != 0)
      piece.recv_buf = static_cast<std::byte*>(operation.recv_buf) + first * element;
    steps.push_back(step_of(piece));
  }
}

// While MPI works on one step, the next comes in and the last one goes out; two slots of each kind.
staging::trouble staging::run_collectives(const std::vector<step>& steps) {
  trouble first;
  if (!steps.empty()) first = fetch(steps[0], 0);
  for (std::size_t i = 0; i < steps.size() && first.status == ISTHMUS_SUCCESS; ++i) {
    if (steps[i].in_bytes != 0) first = mark_and_wait(m_arrived, m_in);
    if (first.status == ISTHMUS_SUCCESS && i + 1 < steps.size()) first = fetch(steps[i + 1], (i + 1) % 2);
    if (first.status == ISTHMUS_SUCCESS && i >= 2) first = wait_for(m_left[i % 2]);
    if (first.status == ISTHMUS_SUCCESS) first = call_mpi(steps[i], i % 2);
    if (first.status == ISTHMUS_SUCCESS) first = bring_back(steps[i], i % 2);
  }
  for (void* event : m_left)
    if (first.status == ISTHMUS_SUCCESS) first = wait_for(event);
  return first;
}

staging::trouble staging::fetch(const step& what, std::size_t slot) {
  void* const to = what.staged ? m_send[slot].get(what.in_bytes) : what.call.recv_buf;
  return copy(to, what.call.send_buf, what.in_bytes, m_in);
}

staging::trouble staging::call_mpi(const step& what, std::size_t slot) {
  isthmus_operation call = what.call;
  if (what.staged) {
    call.send_buf = m_send[slot].get(what.in_bytes);
    call.recv_buf = m_recv[slot].get(what.blocks.recv_bytes());
  } else if (what.in_bytes != 0) {
    call.send_buf = call.recv_buf;
  }
  const bool averages = row_of(call.collective).is_reduction && call.op == ISTHMUS_AVG;
  if (averages) call.op = ISTHMUS_SUM;
  m_inside_mpi = true;
  const int code = m_context.mpi->collective(m_comm, &call);
  m_inside_mpi = false;
  if (code != 0) return native(code, name_of(call.collective));
  if (averages && what.blocks.recv_bytes() != 0)
    mpi::divide(call.recv_buf, call.count, call.datatype, m_context.size);
  return {};
}

// What lies between blocks of their own lengths stays as it was.
staging::trouble staging::bring_back(const step& what, std::size_t slot) {
  const std::uint64_t whole = what.blocks.recv_bytes();
  if (!what.staged || whole == 0) return {};
  const std::byte* const from = m_recv[slot].get(whole);
  const auto bring = [&](const block& part) {
    return copy(static_cast<std::byte*>(what.call.recv_buf) + part.offset, from + part.offset, part.bytes, m_out);
  };
  trouble bad;
  if (what.blocks.recv.shape != extent::counts)
    bad = bring({0, whole});
  else
    for (int peer = 0; peer < m_context.size && bad.status == ISTHMUS_SUCCESS; ++peer)
      bad = bring(what.blocks.incoming_block(peer));
  if (bad.status != ISTHMUS_SUCCESS) return bad;
  return device(m_runtime.event_record(m_left[slot], m_out), "EventRecord");
}

staging::trouble staging::start_peers(const std::vector<step>& peers, std::vector<void*>& open) {
  std::uint64_t in_bytes = 0, out_bytes = 0;
  for (const step& each : peers) in_bytes += each.in_bytes, out_bytes += each.out_bytes();
  std::byte* const staged = m_peer_send.get(in_bytes);
  std::byte* send = staged;
  std::byte* recv = m_peer_recv.get(out_bytes);
  trouble first;
  for (const step& each : peers) {
    if (first.status == ISTHMUS_SUCCESS) first = copy(send, each.call.send_buf, each.in_bytes, m_in);
    send += each.in_bytes;
  }
  if (first.status == ISTHMUS_SUCCESS && in_bytes != 0) first = mark_and_wait(m_arrived, m_in);
  send = staged;
  for (const step& each : peers) {
    if (first.status != ISTHMUS_SUCCESS) break;
    isthmus_operation call = each.call;
    if (each.staged) call.send_buf = send, call.recv_buf = recv;
    send += each.in_bytes;
    recv += each.out_bytes();
    void* request = nullptr;
    first = native(m_context.mpi->start(m_comm, &call, &request), name_of(call.collective));
    if (first.status == ISTHMUS_SUCCESS) open.push_back(request);
  }
  return first;
}

staging::trouble staging::finish_peers(const std::vector<step>& peers, std::vector<void*>& open) {
  trouble first;
  while (!open.empty() && first.status == ISTHMUS_SUCCESS) {
    std::erase_if(open, [&](void*& request) {
      int done = 0;
      if (first.status == ISTHMUS_SUCCESS)
        first = native(m_context.mpi->test(&request, &done), "point to point");
      return done != 0;
    });
    if (stopped()) first = {ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"};
  }
  std::uint64_t out_bytes = 0;
  for (const step& each : peers) out_bytes += each.out_bytes();
  const std::byte* recv = m_peer_recv.get(out_bytes);
  for (const step& each : peers) {
    if (first.status == ISTHMUS_SUCCESS) first = copy(each.call.recv_buf, recv, each.out_bytes(), m_out);
    recv += each.out_bytes();
  }
  return first.status == ISTHMUS_SUCCESS && out_bytes != 0 ? mark_and_wait(m_left[0], m_out) : first;
}

}  // namespace isthmus::hybrid
