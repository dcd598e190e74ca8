#include "frontends/nccl/order.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/dynamic_library.hpp"
#include "device/libraries.hpp"
#include "frontends/nccl/groups.hpp"
#include "frontends/nccl/inside_nccl.hpp"

namespace isthmus::nccl_shim {
namespace {

constexpr unsigned event_without_timing = 2;
constexpr int is_captured = 1;  // CU_STREAM_CAPTURE_STATUS_ACTIVE

// The few functions of CUDA's driver that this takes. Streams of the runtime are the driver's.
struct driver {
  int (*retain_context)(void** context, int device) = nullptr;
  int (*push_context)(void* context) = nullptr;
  int (*pop_context)(void** context) = nullptr;
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*event_record)(void* event, nccl_stream stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  int (*stream_wait_event)(nccl_stream stream, void* event, unsigned flags) = nullptr;
  int (*capture_info)(nccl_stream stream, int* status, std::uint64_t* id) = nullptr;
  int (*memory_allocate)(void** memory, std::size_t bytes) = nullptr;

  static const driver* get() {
    static const std::unique_ptr<driver> only = load();
    return only.get();
  }

 private:
  static std::unique_ptr<driver> load() {
    std::string reason;
    const dynamic_library library = dynamic_library::open(cuda_driver_library(), reason);
    if (!library) return nullptr;
    auto made = std::make_unique<driver>();
    symbol_loader loader(library, "cu");
    loader.load_required(made->retain_context, "DevicePrimaryCtxRetain");
    loader.load_required(made->push_context, "CtxPushCurrent_v2");
    loader.load_required(made->pop_context, "CtxPopCurrent_v2");
    loader.load_required(made->event_create, "EventCreate");
    loader.load_required(made->event_destroy, "EventDestroy_v2");
    loader.load_required(made->event_record, "EventRecord");
    loader.load_required(made->event_query, "EventQuery");
    loader.load_required(made->stream_wait_event, "StreamWaitEvent");
    loader.load_required(made->capture_info, "StreamGetCaptureInfo");
    loader.load_required(made->memory_allocate, "MemAlloc_v2");
    return loader.first_missing().empty() ? std::move(made) : nullptr;
  }
};

// The streams that the driver knows by the current context: NULL, and those of the runtime for one thread or
// all.
bool goes_by_context(nccl_stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

class current_context {
 public:
  current_context(void* context, bool needed) : m_pushed(needed && driver::get()->push_context(context) == 0) {}
  ~current_context() {
    void* ours = nullptr;
    if (m_pushed) driver::get()->pop_context(&ours);
  }
  current_context(const current_context&) = delete;
  current_context& operator=(const current_context&) = delete;

 private:
  bool m_pushed;
};

// The number of the capture that `stream` is in; 0: none. NULL streams never are, and may not be asked beside
// one.
std::uint64_t capture_of(nccl_stream stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) <= 1) return 0;
  int status = 0;
  std::uint64_t id = 0;
  if (driver::get()->capture_info(stream, &status, &id) != 0 || status != is_captured) return 0;
  return id;
}

// What a rank sends to itself, by device; its context is current. It is never freed, since that would wait for
// everything on the device, and what is aborted may never end.
void* two_bytes_on(int device) {
  static std::mutex mutex;
  static auto* const known = new std::map<int, void*>;
  const std::lock_guard lock(mutex);
  void*& memory = (*known)[device];
  if (memory == nullptr && driver::get()->memory_allocate(&memory, 2) != 0) memory = nullptr;
  return memory;
}

// NCCL runs a communicator's calls one behind the other, whatever streams they are on; so on `stream` a message
// of this rank to itself, which no other rank hears of, ends behind all of them.
int send_to_itself(nccl_comm comm, int rank, void* two_bytes, nccl_stream stream) {
  constexpr int one_byte = 0;  // ncclInt8
  const inside_nccl now;
  const nccl_functions& nccl = real_nccl();
  char* const bytes = static_cast<char*>(two_bytes);
  if (const int code = nccl.group_start(); code != nccl_success) return code;
  const int out =
      reinterpret_cast<sent*>(nccl.collectives[ISTHMUS_SEND])(bytes, 1, one_byte, rank, comm, stream);
  const int in =
      reinterpret_cast<received*>(nccl.collectives[ISTHMUS_RECV])(bytes + 1, 1, one_byte, rank, comm, stream);
  const int end = nccl.group_end();
  return out != nccl_success ? out : in != nccl_success ? in : end;
}

}  // namespace

bool stream_order::open(nccl_comm comm, int rank, int device) {
  const driver* const cuda = driver::get();
  const nccl_functions& nccl = real_nccl();
  m_comm = comm;
  m_rank = rank;
  m_calls_on_stream = 0;
  // The context stays: it is the runtime's, which the program uses.
  if (cuda == nullptr || cuda->retain_context(&m_context, device) != 0) return false;
  const current_context current(m_context, true);
  for (mark* const each : {&m_plain, &m_captured})
    if (cuda->event_create(&each->event, event_without_timing) != 0) return false;
  const bool has_messages =
      nccl.collectives[ISTHMUS_SEND] != nullptr && nccl.collectives[ISTHMUS_RECV] != nullptr;
  m_two_bytes = has_messages ? two_bytes_on(device) : nullptr;
  return true;
}

void stream_order::close() {
  for (mark* const each : {&m_plain, &m_captured}) {
    if (each->event != nullptr) driver::get()->event_destroy(each->event);
    *each = {};
  }
}

int stream_order::before(nccl_stream stream, call_owner owner) {
  if (m_plain.is_only_on(stream) && m_captured.is_only_on(stream)) return nccl_success;  // the driver not asked
  const std::uint64_t capture = capture_of(stream);
  mark& last = mark_for(capture);
  if (!last.is_set || last.capture != capture || last.stream == stream) return nccl_success;
  if (last.owner == call_owner::nccl && owner == call_owner::nccl) return nccl_success;
  if (!last.is_recorded && last.owner == call_owner::nccl && m_two_bytes != nullptr)
    if (const int code = follow_nccl(last, stream); code != nccl_success) return code;
  return last.is_recorded && waits_for(last, stream) ? nccl_success : nccl_unhandled_cuda_error;
}

// In a group of this thread NCCL would keep the message to its end, behind Isthmus' call; NCCL's groups are a
// thread's, so another one sends it, and records the event itself: cudaStreamPerThread is its own there. The
// communicator has no call in the group yet: groups.cpp asks before that.
//
// The event still stands behind Isthmus' last call. The message waits for it, too: NCCL's calls since then need
// not have put anything behind that.
int stream_order::follow_nccl(mark& last, nccl_stream stream) {
  int code = nccl_unhandled_cuda_error;
  const auto send = [&] {
    if (waits_for(last, stream)) code = send_to_itself(m_comm, m_rank, m_two_bytes, stream);
    if (code == nccl_success) record(last, stream);
  };
  if (in_group())
    std::jthread(send).join();
  else
    send();
  if (code == nccl_success) m_calls_on_stream = 0;
  return code;
}

bool stream_order::waits_for(const mark& last, nccl_stream stream) const {
  const current_context current(m_context, goes_by_context(stream));
  return driver::get()->stream_wait_event(stream, last.event, 0) == 0;
}

void stream_order::record(mark& last, nccl_stream stream) {
  const current_context current(m_context, goes_by_context(stream));
  last.is_recorded = driver::get()->event_record(last.event, stream) == 0;
  last.stream = stream;
}

void stream_order::after(nccl_stream stream, call_owner owner) {
  const std::uint64_t capture = capture_of(stream);
  mark& last = mark_for(capture);
  if (capture == 0) m_calls_on_stream = last.is_set && last.stream == stream ? m_calls_on_stream + 1 : 0;
  last.is_set = true;
  last.owner = owner;
  last.capture = capture;
  last.stream = stream;
  last.is_recorded = false;
  const bool is_trusted = m_two_bytes != nullptr && m_calls_on_stream >= calls_to_trust;
  if (owner == call_owner::isthmus || capture != 0 || !is_trusted) record(last, stream);
}

bool stream_order::is_idle() const {
  return m_plain.event == nullptr || driver::get()->event_query(m_plain.event) == 0;
}

}  // namespace isthmus::nccl_shim
