#include "device/stream_functions.hpp"

#include "base/error.hpp"

namespace isthmus {
namespace {

void check(int code, const char* function) {
  if (code == 0) return;
  throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE, fmt::format("{} failed with code {}", function, code),
                   "check earlier kernels and copies: after a fault, every later call fails with its code",
                   code);
}

}  // namespace

std::string stream_functions::load(isthmus_platform platform) {
  const auto vendor =
      platform == ISTHMUS_PLATFORM_CUDA ? gpu::vendor_library::cuda_driver : gpu::vendor_library::hip;
  std::string reason;
  const dynamic_library file = dynamic_library::open(gpu::library_search(vendor), reason);
  if (!file) return reason;
  const std::string missing = m_native.look_up(vendor, file);
  return missing.empty() ? "" : file.path() + " lacks " + missing;
}

bool stream_functions::is_blocking(native_stream stream) const {
  if (is_null_stream(stream)) return true;
  unsigned flags = 0;
  check(m_native.stream_get_flags(stream, &flags), "StreamGetFlags");
  return (flags & gpu::non_blocking_stream) == 0;
}

bool stream_functions::can_flush(int device) const {
  int is_supported = 0;
  return m_native.stream_wait_word != nullptr &&
         m_native.device_get_attribute(&is_supported, gpu::attribute_flush_remote_writes, device) ==
             gpu::success &&
         is_supported != 0;
}

void stream_functions::wait_word_and_flush(const std::uint32_t* word, std::uint32_t value,
                                           native_stream stream) const {
  check(m_native.stream_wait_word(stream, const_cast<std::uint32_t*>(word), value,
                                  gpu::wait_until_reached | gpu::wait_then_flush),
        "cuStreamWaitValue32");
}

}  // namespace isthmus
