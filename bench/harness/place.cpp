#include "place.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

namespace bench {
namespace {

void* allocate_on_host(std::uint64_t bytes) {
  void* pointer = nullptr;
  if (posix_memalign(&pointer, 4096, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
  return pointer;
}

}  // namespace

memory_place::memory_place(isthmus_device device) : m_device(device) {
  if (is_host()) return;
  if (const std::string reason = m_runtime.load(device.platform, nullptr, nullptr); !reason.empty())
    throw std::runtime_error(reason);
  check(m_runtime.set_device(device.ordinal));
  check(m_runtime.stream_create(&m_stream, isthmus::gpu::non_blocking_stream));
  check(m_runtime.event_create(&m_begin, 0));
  check(m_runtime.event_create(&m_end, 0));
}

memory_place::~memory_place() {
  for (void* event : {m_begin, m_end})
    if (event != nullptr) m_runtime.event_destroy(event);
  if (m_stream != nullptr) m_runtime.stream_destroy(m_stream);
}

void* memory_place::allocate(std::uint64_t bytes) const {
  if (is_host()) return allocate_on_host(bytes);
  void* pointer = nullptr;
  check(m_runtime.malloc(&pointer, bytes == 0 ? 1 : bytes));
  return pointer;
}

void* memory_place::allocate_pinned(std::uint64_t bytes) const {
  if (is_host()) return allocate_on_host(bytes);
  void* pointer = nullptr;
  check(m_runtime.host_alloc(&pointer, bytes == 0 ? 1 : bytes, 0));
  return pointer;
}

void memory_place::release(void* pointer) const {
  is_host() ? std::free(pointer) : void(m_runtime.free(pointer));
}
void memory_place::release_pinned(void* pointer) const {
  is_host() ? std::free(pointer) : void(m_runtime.host_free(pointer));
}

void memory_place::copy(void* to, const void* from, std::uint64_t bytes) const {
  if (bytes == 0) return;
  if (is_host())
    std::memcpy(to, from, bytes);
  else
    check(m_runtime.memcpy_async(to, from, bytes, isthmus::gpu::memcpy_default, m_stream));
}

void memory_place::wait() const {
  if (!is_host()) check(m_runtime.device_synchronize());
}

double memory_place::stream_us(const std::function<void()>& work) {
  if (m_runtime.event_elapsed == nullptr) throw std::runtime_error("the device runtime has no event timer");
  check(m_runtime.event_record(m_begin, m_stream));
  work();
  check(m_runtime.event_record(m_end, m_stream));
  wait();
  float milliseconds = 0;
  check(m_runtime.event_elapsed(&milliseconds, m_begin, m_end));
  return static_cast<double>(milliseconds) * 1e3;
}

}  // namespace bench
