// Finds the stream that a ggml backend uses: a CUDA stream or a sycl::queue. ggml exports neither, but it
// reveals the stream when it records one of its own events: the resulting call into the CUDA or SYCL runtime
// goes through this library (hooks.cpp). The library does not read ggml's internal structures.
#pragma once

#include <isthmus/types.h>

#include <string>

#include "frontends/ggml/ggml_library.hpp"

namespace isthmus::ggml {

enum class stream_kind { cuda, sycl };

// Records the streams on which the calling thread records events, during the lifetime of the object.
class stream_watch {
 public:
  explicit stream_watch(stream_kind kind);
  ~stream_watch();
  stream_watch(const stream_watch&) = delete;
  stream_watch& operator=(const stream_watch&) = delete;

  // Called by the hooks. Does nothing on a thread without a stream_watch. `function` is the runtime function
  // that the hook forwards to.
  static void record_stream(stream_kind kind, void* stream, const void* function) noexcept;

  bool has_exactly_one() const { return m_event_count == 1; }
  void* stream() const { return m_stream; }
  const void* function() const { return m_function; }

 private:
  stream_kind m_kind;
  void* m_stream = nullptr;
  const void* m_function = nullptr;
  int m_event_count = 0;
};

struct stream_lookup {
  void* stream = nullptr;
  const void* function = nullptr;  // the event-recording function of the runtime that owns the stream
  std::string reason{};            // "" if the stream was found, which can be the default stream
};

// Records two events on `backend` and waits for them. Both must use the same stream.
stream_lookup find_stream(const ggml_library& ggml, ggml_backend* backend, stream_kind kind);

// Returns the device ordinal of a CUDA stream, or -1 if the driver does not report it.
int cuda_ordinal_of(void* stream);

}  // namespace isthmus::ggml
