#include "frontends/nccl/order.hpp"

#include <memory>
#include <string>

#include "base/dynamic_library.hpp"
#include "device/libraries.hpp"

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
    loader.need(made->retain_context, "DevicePrimaryCtxRetain");
    loader.need(made->push_context, "CtxPushCurrent_v2");
    loader.need(made->pop_context, "CtxPopCurrent_v2");
    loader.need(made->event_create, "EventCreate");
    loader.need(made->event_destroy, "EventDestroy_v2");
    loader.need(made->event_record, "EventRecord");
    loader.need(made->event_query, "EventQuery");
    loader.need(made->stream_wait_event, "StreamWaitEvent");
    loader.need(made->capture_info, "StreamGetCaptureInfo");
    return loader.missing().empty() ? std::move(made) : nullptr;
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

}  // namespace

bool stream_order::open(int device) {
  const driver* const cuda = driver::get();
  // The context stays: it is the runtime's, which the program uses.
  if (cuda == nullptr || cuda->retain_context(&m_context, device) != 0) return false;
  const current_context current(m_context, true);
  for (mark* const each : {&m_plain, &m_captured})
    if (cuda->event_create(&each->event, event_without_timing) != 0) return false;
  return true;
}

void stream_order::close() {
  for (mark* const each : {&m_plain, &m_captured}) {
    if (each->event != nullptr) driver::get()->event_destroy(each->event);
    *each = {};
  }
}

void stream_order::before(nccl_stream stream, carrier who) {
  if (m_plain.is_only_on(stream) && m_captured.is_only_on(stream)) return;  // without asking the driver
  const std::uint64_t capture = capture_of(stream);
  const mark& last = mark_for(capture);
  if (!last.is_set || last.capture != capture || last.stream == stream) return;
  if (last.who == carrier::nccl && who == carrier::nccl) return;
  const current_context current(m_context, goes_by_context(stream));
  driver::get()->stream_wait_event(stream, last.event, 0);
}

void stream_order::after(nccl_stream stream, carrier who) {
  const std::uint64_t capture = capture_of(stream);
  mark& last = mark_for(capture);
  const current_context current(m_context, goes_by_context(stream));
  last.is_set = driver::get()->event_record(last.event, stream) == 0;
  last.stream = stream;
  last.who = who;
  last.capture = capture;
}

bool stream_order::is_idle() const { return !m_plain.is_set || driver::get()->event_query(m_plain.event) == 0; }

}  // namespace isthmus::nccl_shim
