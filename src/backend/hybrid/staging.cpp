#include "staging.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "../mpi/divide.hpp"
#include "../xccl/device_runtime.hpp"
#include "../xccl/native_map.hpp"

namespace isthmus::hybrid {
namespace {

constexpr std::size_t events_in_stock = 256;  // operations in flight before enqueue has to wait for one

const char* name_of(isthmus_collective collective) {
  switch (collective) {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_at, send_extent, recv_at, recv_extent, in_place) \
  case ISTHMUS_##NAME: return #name;
#include <isthmus/collectives.def>
    case ISTHMUS_COLLECTIVE_COUNT: break;
  }
  return "operation";
}

bool is_point_to_point(const isthmus_operation& operation) {
  return operation.collective == ISTHMUS_SEND || operation.collective == ISTHMUS_RECV;
}

}  // namespace

std::byte* staging::host_memory::get(std::size_t bytes) {
  if (bytes <= m_capacity) return m_pinned;
  if (m_ordinary.size() < bytes) m_ordinary.resize(bytes);
  return m_ordinary.data();
}

staging::staging(const isthmus_backend_context& context, const staging_runtime& runtime, isthmus_mpi_comm comm,
                 std::uint64_t piece_bytes)
    : m_context(context), m_runtime(runtime), m_comm(comm), m_piece_bytes(piece_bytes) {}

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
      m_context.runtime, what.status, what.native_code, "src/backend/hybrid/staging.cpp",
      "device buffers went over MPI by rule; raise or lower the threshold to choose otherwise", "%s",
      what.message.c_str());
}

isthmus_status staging::start() {
  trouble first;
  const auto need = [&](int error, const char* what) {
    if (first.status == ISTHMUS_SUCCESS) first = device(error, what);
  };
  need(m_runtime.set_device(m_context.device.ordinal), "SetDevice");
  need(m_runtime.stream_create(&m_in, stream_non_blocking), "StreamCreate");
  need(m_runtime.stream_create(&m_out, stream_non_blocking), "StreamCreate");
  need(m_runtime.event_create(&m_arrived, event_without_timing), "EventCreate");
  for (void*& event : m_left) need(m_runtime.event_create(&event, event_without_timing), "EventCreate");
  void* word = nullptr;
  need(m_runtime.host_alloc(&word, sizeof(std::uint32_t), 0), "HostAlloc");
  for (host_memory* memory : {&m_send[0], &m_send[1], &m_recv[0], &m_recv[1]}) {
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
  for (const host_memory* memory : {&m_send[0], &m_send[1], &m_recv[0], &m_recv[1]})
    if (memory->pinned() != nullptr) m_runtime.host_free(memory->pinned());
  if (m_word != nullptr) m_runtime.host_free(m_word);
}

isthmus_status staging::enqueue(const isthmus_operation* operations, std::size_t n) {
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
  work.ticket = m_issued + 1;
  void* const stream = operations[0].stream;
  trouble first = device(m_runtime.event_record(work.event, stream), "EventRecord");
  if (first.status == ISTHMUS_SUCCESS)
    first = device(m_runtime.hold(stream, m_word, work.ticket), "StreamWaitValue32");
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
    std::atomic_ref<std::uint32_t>(*m_word).store(work.ticket, std::memory_order_release);
    lock.lock();
    if (m_trouble.status == ISTHMUS_SUCCESS) m_trouble = result;
    m_free_events.push_back(work.event);
    m_finished = work.ticket;
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
  return device(m_runtime.memcpy_async(to, from, bytes, xccl::memcpy_default, stream), "MemcpyAsync");
}

staging::trouble staging::run(const task& work) {
  if (trouble late = wait_for(work.event); late.status != ISTHMUS_SUCCESS) return late;
  if (work.operations.size() == 1) {
    const isthmus_operation& only = work.operations[0];
    const staged_shape shape = shape_of(only, m_context.rank, m_context.size);
    const std::uint64_t bytes = only.count * xccl::datatype_bytes(only.datatype);
    if (shape.elementwise && bytes > m_piece_bytes) return run_in_pieces(only, shape);
  }
  return run_whole(work.operations);
}

staging::trouble staging::run_whole(const std::vector<isthmus_operation>& operations) {
  std::vector<staged_shape> shapes;
  std::size_t send_bytes = 0, recv_bytes = 0;
  for (const isthmus_operation& operation : operations) {
    shapes.push_back(shape_of(operation, m_context.rank, m_context.size));
    send_bytes += shapes.back().send_bytes;
    recv_bytes += shapes.back().recv_bytes;
  }
  std::byte* send = m_send[0].get(send_bytes);
  std::byte* recv = m_recv[0].get(recv_bytes);
  std::vector<isthmus_operation> on_host = operations;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (trouble bad = copy(send, operations[i].send_buf, shapes[i].send_bytes, m_in);
        bad.status != ISTHMUS_SUCCESS)
      return bad;
    on_host[i].send_buf = send;
    on_host[i].recv_buf = recv;
    on_host[i].stream = nullptr;
    send += shapes[i].send_bytes;
    recv += shapes[i].recv_bytes;
  }
  trouble first = device(m_runtime.event_record(m_arrived, m_in), "EventRecord");
  if (first.status == ISTHMUS_SUCCESS) first = wait_for(m_arrived);
  if (first.status == ISTHMUS_SUCCESS) first = run_on_host(on_host);
  for (std::size_t i = 0; i < operations.size() && first.status == ISTHMUS_SUCCESS; ++i)
    for (const block& part : shapes[i].recv_blocks) {
      auto* const to = static_cast<std::byte*>(operations[i].recv_buf) + part.at;
      if (first.status == ISTHMUS_SUCCESS)
        first = copy(to, static_cast<std::byte*>(on_host[i].recv_buf) + part.at, part.bytes, m_out);
    }
  if (first.status == ISTHMUS_SUCCESS) first = device(m_runtime.event_record(m_left[0], m_out), "EventRecord");
  return first.status == ISTHMUS_SUCCESS ? wait_for(m_left[0]) : first;
}

// While MPI works on one piece, the next comes in and the last one goes out; two slots of each kind.
staging::trouble staging::run_in_pieces(const isthmus_operation& operation, const staged_shape& shape) {
  const std::uint64_t element = xccl::datatype_bytes(operation.datatype);
  const std::uint64_t per_piece = m_piece_bytes / element;
  const std::uint64_t pieces = (operation.count + per_piece - 1) / per_piece;
  const auto bytes_of = [&](std::uint64_t piece) {
    return std::min(per_piece, operation.count - piece * per_piece) * element;
  };
  const auto fetch = [&](std::uint64_t piece) {
    if (shape.send_bytes == 0) return trouble{};
    const auto* from = static_cast<const std::byte*>(operation.send_buf) + piece * per_piece * element;
    return copy(m_send[piece % 2].pinned(), from, bytes_of(piece), m_in);
  };
  trouble first = fetch(0);
  for (std::uint64_t piece = 0; piece < pieces && first.status == ISTHMUS_SUCCESS; ++piece) {
    const std::uint64_t slot = piece % 2;
    first = device(m_runtime.event_record(m_arrived, m_in), "EventRecord");
    if (first.status == ISTHMUS_SUCCESS) first = wait_for(m_arrived);
    if (first.status == ISTHMUS_SUCCESS && piece + 1 < pieces) first = fetch(piece + 1);
    if (first.status == ISTHMUS_SUCCESS && piece >= 2) first = wait_for(m_left[slot]);
    if (first.status != ISTHMUS_SUCCESS) break;
    std::vector<isthmus_operation> on_host{operation};
    on_host[0].send_buf = m_send[slot].pinned();
    on_host[0].recv_buf = m_recv[slot].pinned();
    on_host[0].count = bytes_of(piece) / element;
    on_host[0].stream = nullptr;
    first = run_on_host(on_host);
    if (first.status == ISTHMUS_SUCCESS && shape.recv_bytes != 0)
      first = copy(static_cast<std::byte*>(operation.recv_buf) + piece * per_piece * element,
                   m_recv[slot].pinned(), bytes_of(piece), m_out);
    if (first.status == ISTHMUS_SUCCESS)
      first = device(m_runtime.event_record(m_left[slot], m_out), "EventRecord");
  }
  for (std::uint64_t slot = 0; slot < 2 && first.status == ISTHMUS_SUCCESS; ++slot)
    first = wait_for(m_left[slot]);
  return first;
}

// Point to point of a group starts first and moves on while the collectives run in their order.
staging::trouble staging::run_on_host(std::vector<isthmus_operation>& operations) {
  std::vector<void*> open;
  trouble first;
  for (const isthmus_operation& operation : operations) {
    if (!is_point_to_point(operation) || operation.count == 0) continue;
    void* request = nullptr;
    first = native(m_context.mpi->start(m_comm, &operation, &request), name_of(operation.collective));
    if (first.status != ISTHMUS_SUCCESS) break;
    open.push_back(request);
  }
  for (const isthmus_operation& operation : operations)
    if (first.status == ISTHMUS_SUCCESS && !is_point_to_point(operation)) first = collective_on_host(operation);
  while (!open.empty() && first.status == ISTHMUS_SUCCESS) {
    std::erase_if(open, [&](void*& request) {
      int done = 0;
      if (first.status == ISTHMUS_SUCCESS)
        first = native(m_context.mpi->test(&request, &done), "point to point");
      return done != 0;
    });
    if (stopped()) first = {ISTHMUS_ERROR_ABORTED, 0, "the communicator was aborted"};
  }
  for (void*& request : open) m_context.mpi->cancel(&request);  // after a failure: nothing may write later
  return first;
}

staging::trouble staging::collective_on_host(const isthmus_operation& operation) {
  isthmus_operation call = operation;
  if (operation.op == ISTHMUS_AVG) call.op = ISTHMUS_SUM;
  m_inside_mpi = true;
  const int code = m_context.mpi->collective(m_comm, &call);
  m_inside_mpi = false;
  if (code != 0) return native(code, name_of(operation.collective));
  const bool receives = operation.collective != ISTHMUS_REDUCE || operation.root == m_context.rank;
  if (xccl::reduces(operation.collective) && operation.op == ISTHMUS_AVG && receives)
    mpi::divide(operation.recv_buf, operation.count, operation.datatype, m_context.size);
  return {};
}

}  // namespace isthmus::hybrid
