#include "frontends/nccl/stream_order.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "device/gpu/gpu_api.hpp"
#include "frontends/nccl/engine.hpp"

namespace isthmus::nccl_shim {
namespace {

// The CUDA driver, or nullptr. Streams of the CUDA runtime are also streams of the driver. Never deleted.
gpu::gpu_api* cuda_driver() {
  static gpu::gpu_api* const instance = [] {
    std::string reason;
    std::unique_ptr<gpu::gpu_api> driver = gpu::load_cuda(reason);
    const bool is_usable = driver != nullptr && driver->stream_get_capture_info != nullptr;
    return is_usable ? driver.release() : nullptr;
  }();
  return instance;
}

// Streams that the driver resolves with the current context: NULL, and the runtime's
// legacy and per-thread streams.
bool uses_current_context(native_stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

// Makes the context of `device` current if the driver needs it to resolve the stream.
std::optional<gpu::current_device> context_for(native_stream stream, int device) {
  if (!uses_current_context(stream)) return std::nullopt;
  return std::optional<gpu::current_device>(std::in_place, *cuda_driver(), device);
}

// Returns the id of the capture that includes `stream`, or 0 if there is none. The legacy default stream is
// never captured and must not be queried during a capture.
std::uint64_t capture_id_of(native_stream stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) <= 1) return 0;
  int status = 0;
  std::uint64_t id = 0;
  if (cuda_driver()->stream_get_capture_info(stream, &status, &id) != 0 || status != gpu::capture_active)
    return 0;
  return id;
}

// Returns the buffer for a rank's message to itself. There is one buffer per device. The device's context
// must be current. The buffer is never freed: freeing would wait for all work on the device, and aborted work
// may never end.
void* self_message_buffer(int device) {
  static std::mutex mutex;
  static auto* const buffers = new std::map<int, void*>;
  const std::lock_guard lock(mutex);
  void*& memory = (*buffers)[device];
  if (memory == nullptr && cuda_driver()->malloc(&memory, 2) != 0) memory = nullptr;
  return memory;
}

// Sends a message from this rank to itself on `stream`. NCCL executes a communicator's calls in order, whatever
// their streams, so the message completes after all earlier NCCL calls. No other rank is involved.
int send_to_self(native_comm comm, int rank, void* buffer, native_stream stream) {
  const nccl_call_scope scope;
  const native_functions& nccl = real_nccl();
  char* const bytes = static_cast<char*>(buffer);
  if (const int code = nccl.group_start(); code != native_success) return code;
  const int out = nccl.send(bytes, 1, native_int8, rank, comm, stream);
  const int in = nccl.recv(bytes + 1, 1, native_int8, rank, comm, stream);
  const int end = nccl.group_end();
  return out != native_success ? out : in != native_success ? in : end;
}

}  // namespace

bool stream_order::open(native_comm comm, int rank, int device) {
  gpu::gpu_api* const driver = cuda_driver();
  const native_functions& nccl = real_nccl();
  m_comm = comm;
  m_rank = rank;
  m_device = device;
  m_calls_on_stream = 0;
  if (driver == nullptr) return false;
  const gpu::current_device current(*driver, device);
  if (current.code() != gpu::success) return false;
  for (previous_call* const each : {&m_previous_call, &m_previous_captured_call})
    if (driver->event_create(&each->event, gpu::event_without_timing) != 0) return false;
  const bool has_messages = nccl.send != nullptr && nccl.recv != nullptr;
  m_self_message = has_messages ? self_message_buffer(device) : nullptr;
  return true;
}

void stream_order::close() {
  for (previous_call* const each : {&m_previous_call, &m_previous_captured_call}) {
    if (each->event != nullptr) cuda_driver()->event_destroy(each->event);
    *each = {};
  }
}

int stream_order::begin_call(native_stream stream, call_owner owner) {
  if (m_previous_call.is_unset_or_on(stream) && m_previous_captured_call.is_unset_or_on(stream))
    return native_success;  // no driver call
  const std::uint64_t capture = capture_id_of(stream);
  previous_call& last = previous_call_of(capture);
  if (!last.is_set || last.capture != capture || last.stream == stream) return native_success;
  if (last.owner == call_owner::nccl && owner == call_owner::nccl) return native_success;
  if (!last.is_recorded && last.owner == call_owner::nccl && m_self_message != nullptr)
    if (const int code = wait_for_nccl_calls(last, stream); code != native_success) return code;
  return last.is_recorded && make_stream_wait(last, stream) ? native_success : native_unhandled_device_error;
}

// Inside a group of this thread, NCCL would defer the message to the end of the group, after the Isthmus
// call. NCCL's groups are per thread, so another thread sends the message. That thread also records the
// event, because cudaStreamPerThread means its own stream there. The communicator has no call in the group
// yet; groups.cpp guarantees this.
//
// The event still marks the last Isthmus call. The message waits for it as well, because the NCCL calls since
// then may not have been ordered after it.
int stream_order::wait_for_nccl_calls(previous_call& last, native_stream stream) {
  int code = native_unhandled_device_error;
  const auto send = [&] {
    if (make_stream_wait(last, stream)) code = send_to_self(m_comm, m_rank, m_self_message, stream);
    if (code == native_success) record(last, stream);
  };
  if (is_in_group())
    std::jthread(send).join();
  else
    send();
  if (code == native_success) m_calls_on_stream = 0;
  return code;
}

bool stream_order::make_stream_wait(const previous_call& last, native_stream stream) const {
  const std::optional<gpu::current_device> context = context_for(stream, m_device);
  return cuda_driver()->stream_wait_event(stream, last.event, 0) == 0;
}

void stream_order::record(previous_call& last, native_stream stream) {
  const std::optional<gpu::current_device> context = context_for(stream, m_device);
  last.is_recorded = cuda_driver()->event_record(last.event, stream) == 0;
  last.stream = stream;
}

void stream_order::end_call(native_stream stream, call_owner owner) {
  const std::uint64_t capture = capture_id_of(stream);
  previous_call& last = previous_call_of(capture);
  if (capture == 0) m_calls_on_stream = last.is_set && last.stream == stream ? m_calls_on_stream + 1 : 0;
  last.is_set = true;
  last.owner = owner;
  last.capture = capture;
  last.stream = stream;
  last.is_recorded = false;
  const bool skips_event = m_self_message != nullptr && m_calls_on_stream >= calls_before_trust;
  if (owner == call_owner::isthmus || capture != 0 || !skips_event) record(last, stream);
}

bool stream_order::is_idle() const {
  return m_previous_call.event == nullptr || cuda_driver()->event_query(m_previous_call.event) == 0;
}

}  // namespace isthmus::nccl_shim
