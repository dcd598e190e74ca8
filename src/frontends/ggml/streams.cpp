#include "frontends/ggml/streams.hpp"

#include "device/gpu/functions.hpp"

namespace isthmus::ggml {
namespace {

thread_local stream_watch* active_watch = nullptr;

stream_lookup record_one_event(const ggml_library& ggml, ggml_backend* backend, stream_kind kind) {
  ggml_event* event = ggml.make_event(ggml.get_device(backend));
  if (event == nullptr) return {.reason = "the backend was built without events"};
  stream_watch watch(kind);
  ggml.record_event(event, backend);
  ggml.synchronize_event(event);
  ggml.free_event(event);
  if (watch.has_exactly_one()) return {.stream = watch.stream(), .function = watch.function()};
  return {.reason = "recording an event did not call the shared runtime library (is it linked statically?)"};
}

}  // namespace

stream_watch::stream_watch(stream_kind kind) : m_kind(kind) { active_watch = this; }
stream_watch::~stream_watch() { active_watch = nullptr; }

void stream_watch::record_stream(stream_kind kind, void* stream, const void* function) noexcept {
  if (active_watch == nullptr || active_watch->m_kind != kind) return;
  active_watch->m_stream = stream;
  active_watch->m_function = function;
  ++active_watch->m_event_count;
}

stream_lookup find_stream(const ggml_library& ggml, ggml_backend* backend, stream_kind kind) {
  stream_lookup first = record_one_event(ggml, backend, kind);
  if (!first.reason.empty()) return first;
  stream_lookup second = record_one_event(ggml, backend, kind);
  if (second.reason.empty() && second.stream != first.stream)
    return {.reason = "the backend changes streams between events"};
  return second;
}

int cuda_ordinal_of(void* stream) {
  int (*context_of)(void* stream, void** context);
  int (*push)(void* context);
  int (*device)(int*);
  int (*pop)(void** context);
  const loaded_library driver(gpu::cuda_driver_name);
  if (!driver.find("cuStreamGetCtx", context_of) || !driver.find("cuCtxPushCurrent_v2", push) ||
      !driver.find("cuCtxGetDevice", device) || !driver.find("cuCtxPopCurrent_v2", pop))
    return -1;
  void* context = nullptr;
  if (context_of(stream, &context) != 0 || push(context) != 0) return -1;
  int ordinal = -1;
  if (device(&ordinal) != 0) ordinal = -1;
  void* popped_context = nullptr;
  (void)pop(&popped_context);
  return ordinal;
}

}  // namespace isthmus::ggml
