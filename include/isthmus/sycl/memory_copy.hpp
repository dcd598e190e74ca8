// Copies between the memory of any two SYCL devices, in the same or in different contexts.
//
// SYCL implementations accept a memcpy on a queue whose context does not know one of the pointers, but the copy
// may silently do nothing. Copies between contexts therefore always use memory that both sides can access.
#ifndef ISTHMUS_SYCL_MEMORY_COPY_HPP
#define ISTHMUS_SYCL_MEMORY_COPY_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <isthmus/error.hpp>
#include <isthmus/sycl/features.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::memory {

/// The path of a copy from one device to another.
enum class path {
  automatic,  // the first possible one of the following
  host,       // both are host memory: one memmove in a host task
  direct,     // a command of the destination's queue: one context and peer access
  staged      // in chunks through pinned host memory: always possible
};

namespace detail {

using isthmus::detail::make_exception;

// One endpoint of a copy. The queue and the pointer must belong to the same context.
struct copy_endpoint {
  sycl::queue queue;
  unsigned char* pointer;
};

/// Returns whether both endpoints are on one device in one context. Only then can ranges overlap.
inline bool is_same_memory(const copy_endpoint& first, const copy_endpoint& second) {
  return first.queue.get_context() == second.queue.get_context() &&
         first.queue.get_device() == second.queue.get_device();
}

/// Returns whether the two ranges overlap.
inline bool overlaps(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes) {
  return is_same_memory(destination, source) && destination.pointer < source.pointer + bytes &&
         source.pointer < destination.pointer + bytes;
}

/// Returns whether one memcpy can copy the range. SYCL supports it only between pointers that the queue's
/// context knows and for ranges that do not overlap.
inline bool can_be_direct(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes) {
  return destination.queue.get_context() == source.queue.get_context() &&
         isthmus::detail::has_peer_access(destination.queue.get_device(), source.queue.get_device()) &&
         !overlaps(destination, source, bytes);
}

/// Returns whether both endpoints are host memory and a command can run a memmove on the host
/// after its dependencies.
inline bool can_be_host(const copy_endpoint& destination, const copy_endpoint& source) {
  return destination.queue.get_device().is_cpu() && source.queue.get_device().is_cpu() &&
         isthmus::detail::can_run_host_work(destination.queue.get_device());
}

/// Selects the path. If the caller requests an impossible path, throws instead of using another path.
inline path choose_path(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes,
                        path requested_path) {
  const bool host = can_be_host(destination, source), direct = can_be_direct(destination, source, bytes);
  switch (requested_path) {
    case path::automatic: return host ? path::host : direct ? path::direct : path::staged;
    case path::host:
      if (host) return path::host;
      break;
    case path::direct:
      if (direct) return path::direct;
      break;
    case path::staged: return path::staged;
  }
  throw make_exception({.status = ISTHMUS_ERROR_UNSUPPORTED,
                        .message = std::string("copy: path ") +
                                   (requested_path == path::host ? "host" : "direct") +
                                   " is not possible between '" +
                                   source.queue.get_device().get_info<sycl::info::device::name>() + "' and '" +
                                   destination.queue.get_device().get_info<sycl::info::device::name>() + "'",
                        .hint = "use path::automatic, which selects a possible path"});
}

// A cache of pinned staging chunks. Allocating pinned memory is slow, so chunks are kept for later copies in
// the same context. They are never freed, because a context may not outlive static objects.
class staging_store {
 public:
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20;

  static staging_store& instance() {
    static staging_store& store = *new staging_store;
    return store;
  }

  /// Returns a chunk that the queue's context can read and write. Return it with release().
  unsigned char* acquire(const sycl::queue& queue) {
    {
      const std::lock_guard lock(m_mutex);
      const auto idle_chunk = std::find_if(m_idle_chunks.begin(), m_idle_chunks.end(), [&](const auto& entry) {
        return entry.first == queue.get_context();
      });
      if (idle_chunk != m_idle_chunks.end()) {
        unsigned char* pointer = idle_chunk->second;
        m_idle_chunks.erase(idle_chunk);
        return pointer;
      }
    }
    // The chunk is pinned in the context of the source and does not belong to any of its devices.
    auto* pointer = sycl::malloc_host<unsigned char>(chunk_bytes, queue.get_context());
    if (pointer == nullptr)
      throw make_exception({.status = ISTHMUS_ERROR_OUT_OF_MEMORY,
                            .message = "copy: malloc_host of " + std::to_string(chunk_bytes) + " bytes failed",
                            .hint = "free pinned host memory before the copy"});
    return pointer;
  }

  void release(const sycl::context& context, unsigned char* pointer) {
    const std::lock_guard lock(m_mutex);
    m_idle_chunks.emplace_back(context, pointer);
  }

 private:
  std::mutex m_mutex;
  std::vector<std::pair<sycl::context, unsigned char*>> m_idle_chunks;
};

// The staging buffers of one copy. The destructor returns them to the cache.
class staging_buffers {
 public:
  explicit staging_buffers(const sycl::queue& queue, std::size_t count) : m_context(queue.get_context()) {
    for (std::size_t i = 0; i < count; ++i) m_buffers.push_back(staging_store::instance().acquire(queue));
  }
  ~staging_buffers() {
    for (unsigned char* buffer : m_buffers) staging_store::instance().release(m_context, buffer);
  }
  staging_buffers(const staging_buffers&) = delete;
  staging_buffers& operator=(const staging_buffers&) = delete;
  unsigned char* operator[](std::size_t i) const { return m_buffers[i]; }
  std::size_t size() const { return m_buffers.size(); }

 private:
  sycl::context m_context;
  std::vector<unsigned char*> m_buffers;
};

/// Copies with a memmove in a command of the destination's queue.
inline sycl::event copy_on_host(const copy_endpoint& destination, const copy_endpoint& source,
                                std::size_t bytes, const std::vector<sycl::event>& wait_events) {
  sycl::queue queue = destination.queue;
  return queue.submit([&](sycl::handler& handler) {
    handler.depends_on(wait_events);
    unsigned char* destination_pointer = destination.pointer;
    const unsigned char* source_pointer = source.pointer;
    isthmus::detail::host_work(handler, [=] { std::memmove(destination_pointer, source_pointer, bytes); });
  });
}

/// Copies with a command of the destination's queue.
inline sycl::event copy_directly(const copy_endpoint& destination, const copy_endpoint& source,
                                 std::size_t bytes, const std::vector<sycl::event>& wait_events) {
  isthmus::detail::enable_peer_access(destination.queue.get_device(), source.queue.get_device());
  sycl::queue queue = destination.queue;
  return queue.memcpy(destination.pointer, source.pointer, bytes, wait_events);
}

// Copies in chunks through pinned host memory. While one chunk is read, another one is written. If the
// ranges overlap and the destination has the higher address, chunks are copied from the end to the start,
// as in memmove.
inline sycl::event copy_staged(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes,
                               const std::vector<sycl::event>& wait_events) {
  constexpr std::size_t chunk = staging_store::chunk_bytes;
  const std::size_t chunks = (bytes + chunk - 1) / chunk;
  const bool is_backwards = overlaps(destination, source, bytes) && destination.pointer > source.pointer;
  const auto buffers = std::make_shared<staging_buffers>(source.queue, std::min<std::size_t>(chunks, 3));
  std::vector<sycl::event> write_events(buffers->size());
  sycl::queue reader = source.queue, writer = destination.queue;
  sycl::event last_write;
  for (std::size_t i = 0; i < chunks; ++i) {
    const std::size_t slot = i % buffers->size();
    const std::size_t offset = (is_backwards ? chunks - 1 - i : i) * chunk;
    const std::size_t length = std::min(chunk, bytes - offset);
    std::vector<sycl::event> read_dependencies =
        i < buffers->size() ? wait_events : std::vector{write_events[slot]};
    const sycl::event read =
        reader.memcpy((*buffers)[slot], source.pointer + offset, length, read_dependencies);
    std::vector<sycl::event> write_dependencies{read};
    if (i > 0) write_dependencies.push_back(last_write);
    last_write = write_events[slot] =
        writer.memcpy(destination.pointer + offset, (*buffers)[slot], length, write_dependencies);
  }
  // Keeps the buffers alive until the last chunk has been written.
  if (!isthmus::detail::can_run_host_work(writer.get_device())) {
    last_write.wait();
    return last_write;
  }
  return writer.submit([&](sycl::handler& handler) {
    handler.depends_on(last_write);
    isthmus::detail::host_work(handler, [buffers] {});
  });
}

}  // namespace detail

/// Copies bytes between the memory of any two SYCL devices, also across contexts, where a plain memcpy would
/// silently do nothing. Ranges on one device may overlap: the result is as if all bytes were read first.
///
/// Ordering: starts after `wait_events` and, for in-order queues, after the earlier work of the queue. Later
///   work of in-order queues starts after the copy.
///
/// Blocking: the host does not wait, except for staged copies on AdaptiveCpp's GPU backends, which cannot run
///   host code after the dependencies of a command.
///
/// Thread safety: any thread.
/// @code
/// isthmus::memory::copy(destination_queue, destination, source_queue, source, bytes, {produced}).wait();
/// @endcode
/// @param destination_queue A queue of the device and context of `destination`.
/// @param destination Receives the bytes.
/// @param source_queue A queue of the device and context of `source`.
/// @param source The bytes to copy.
/// @param bytes The size; 0 copies nothing but has the same ordering.
/// @param wait_events Events that the copy waits for.
/// @param requested_path The path; automatic selects the first possible path.
/// @return The event that completes when the bytes have arrived and the source can be overwritten.
/// @throws isthmus::exception ISTHMUS_ERROR_UNSUPPORTED if these devices do not support the requested path;
///   _OUT_OF_MEMORY if pinned memory for staging is not available.
inline sycl::event copy(const sycl::queue& destination_queue, void* destination,
                        const sycl::queue& source_queue, const void* source, std::size_t bytes,
                        const std::vector<sycl::event>& wait_events = {},
                        path requested_path = path::automatic) {
  const detail::copy_endpoint destination_endpoint{destination_queue, static_cast<unsigned char*>(destination)};
  const detail::copy_endpoint source_endpoint{source_queue,
                                              static_cast<unsigned char*>(const_cast<void*>(source))};
  const path selected_path = detail::choose_path(destination_endpoint, source_endpoint, bytes, requested_path);
  std::vector<sycl::event> wait_list = wait_events;
  sycl::queue reader = source_queue, writer = destination_queue;
  if (reader.is_in_order()) wait_list.push_back(isthmus::detail::submit_marker(reader));
  if (writer.is_in_order()) wait_list.push_back(isthmus::detail::submit_marker(writer));
  if (bytes == 0 || destination == source) {
    return writer.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_list);
      isthmus::detail::submit_empty_command(handler);
    });
  }
  const sycl::event copy_event =
      selected_path == path::host
          ? detail::copy_on_host(destination_endpoint, source_endpoint, bytes, wait_list)
      : selected_path == path::direct
          ? detail::copy_directly(destination_endpoint, source_endpoint, bytes, wait_list)
          : detail::copy_staged(destination_endpoint, source_endpoint, bytes, wait_list);
  // Later work of an in-order source queue may overwrite the source.
  if (reader.is_in_order() && reader != writer) {
    reader.submit([&](sycl::handler& handler) {
      handler.depends_on(copy_event);
      isthmus::detail::submit_empty_command(handler);
    });
  }
  return copy_event;
}

}  // namespace isthmus::memory

#endif
