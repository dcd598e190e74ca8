// The stream on which a ggml backend works: a CUDA stream or a sycl::queue. ggml exports neither, but it says
// which when it records one of its own events: the call that it then makes into the CUDA or SYCL runtime
// passes through this library (hooks.cpp), which notes the stream. Nothing of ggml's layout is read.
#pragma once

#include <isthmus/types.h>

#include <string>

#include "frontends/ggml/ggml_library.hpp"

namespace isthmus::ggml {

enum class stream_kind { cuda, sycl };

// Notes the streams on which this thread records events while it exists.
class stream_watch {
 public:
  explicit stream_watch(stream_kind kind);
  ~stream_watch();
  stream_watch(const stream_watch&) = delete;
  stream_watch& operator=(const stream_watch&) = delete;

  // Called by the hooks; does nothing on a thread that watches nothing. `function` is the runtime's own that
  // the hook goes on to.
  static void note(stream_kind kind, void* stream, const void* function) noexcept;

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
  const void* function = nullptr;  // of the runtime that the stream belongs to: it records events
  std::string reason{};            // "" when the stream was found; the default stream is a stream, too
};

// Records two events on `backend` and waits for them; both must name the same stream.
stream_lookup find_stream(const ggml_library& ggml, ggml_backend* backend, stream_kind kind);

// The ordinal of the device that a CUDA stream belongs to; -1 where the driver doesn't say.
int cuda_ordinal_of(void* stream);

}  // namespace isthmus::ggml
