// Copies between memory of any two SYCL devices, in one context or in two.
//
// A memcpy on a queue whose context does not know one of the pointers is accepted by SYCL implementations and
// may do nothing at all, so data that crosses contexts always goes through memory that both sides reach.
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

/// How a copy gets from one device to another.
enum class path {
  automatic,  // the first of the following that is possible
  host,       // both are memory of the host: one memmove, in a host task
  direct,     // by a command of the target's queue: one context, and the devices reach each other
  staged      // in chunks through pinned host memory: always possible
};

namespace detail {

using isthmus::detail::make_exception;

// Where one side of a copy is. The queue's context must be the pointer's.
struct copy_endpoint {
  sycl::queue queue;
  unsigned char* pointer;
};

/// One device in one context: the only case in which ranges can overlap.
inline bool is_same_memory(const copy_endpoint& first, const copy_endpoint& second) {
  return first.queue.get_context() == second.queue.get_context() &&
         first.queue.get_device() == second.queue.get_device();
}

/// Whether the two ranges have bytes in common.
inline bool overlaps(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes) {
  return is_same_memory(destination, source) && destination.pointer < source.pointer + bytes && source.pointer < destination.pointer + bytes;
}

/// SYCL promises a memcpy only between pointers that the queue's context knows; ranges that overlap are beyond
/// it.
inline bool can_be_direct(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes) {
  return destination.queue.get_context() == source.queue.get_context() &&
         isthmus::detail::has_peer_access(destination.queue.get_device(), source.queue.get_device()) && !overlaps(destination, source, bytes);
}

/// Whether both are memory of the host, and a command can run a memmove on it in time.
inline bool can_be_host(const copy_endpoint& destination, const copy_endpoint& source) {
  return destination.queue.get_device().is_cpu() && source.queue.get_device().is_cpu() &&
         isthmus::detail::can_run_host_work(destination.queue.get_device());
}

/// The path that is taken; what the caller asked for and is not possible is refused, never replaced.
inline path choose_path(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes, path requested) {
  const bool host = can_be_host(destination, source), direct = can_be_direct(destination, source, bytes);
  switch (requested) {
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
                        .message = std::string("copy: path ") + (requested == path::host ? "host" : "direct") +
                                   " is not possible between '" +
                                   source.queue.get_device().get_info<sycl::info::device::name>() + "' and '" +
                                   destination.queue.get_device().get_info<sycl::info::device::name>() + "'",
                        .hint = "path::automatic takes what is possible"});
}

// Pinned memory is slow to make, so it is kept for the next copy of the same context, for the whole process:
// it is never given back, because a context may not outlive static objects.
class staging_store {
 public:
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20;

  static staging_store& instance() {
    static staging_store& store = *new staging_store;
    return store;
  }

  /// A chunk that the context can read and write; the caller gives it back.
  unsigned char* acquire(const sycl::queue& queue) {
    {
      const std::lock_guard lock(m_mutex);
      const auto idle = std::find_if(m_idle.begin(), m_idle.end(),
                                      [&](const auto& entry) { return entry.first == queue.get_context(); });
      if (idle != m_idle.end()) {
        unsigned char* pointer = idle->second;
        m_idle.erase(idle);
        return pointer;
      }
    }
    // Pinned in the context of the side that reads; it belongs to no device of it.
    auto* pointer = sycl::malloc_host<unsigned char>(chunk_bytes, queue.get_context());
    if (pointer == nullptr)
      throw make_exception(
          {.status = ISTHMUS_ERROR_OUT_OF_MEMORY,
           .message = "copy: malloc_host of " + std::to_string(chunk_bytes) + " bytes failed"});
    return pointer;
  }

  void release(const sycl::context& context, unsigned char* pointer) {
    const std::lock_guard lock(m_mutex);
    m_idle.emplace_back(context, pointer);
  }

 private:
  std::mutex m_mutex;
  std::vector<std::pair<sycl::context, unsigned char*>> m_idle;
};

// The buffers of one copy, which go back when the copy is done.
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

/// A memmove in a command of the target's queue.
inline sycl::event copy_on_host(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes,
                                const std::vector<sycl::event>& wait_events) {
  sycl::queue queue = destination.queue;
  return queue.submit([&](sycl::handler& handler) {
    handler.depends_on(wait_events);
    unsigned char* to_bytes = destination.pointer;
    const unsigned char* from_bytes = source.pointer;
    isthmus::detail::host_work(handler, [=] { std::memmove(to_bytes, from_bytes, bytes); });
  });
}

/// A command of the target's queue: the side that waits for the bytes is the one that moves them.
inline sycl::event copy_directly(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes,
                                 const std::vector<sycl::event>& wait_events) {
  isthmus::detail::enable_peer_access(destination.queue.get_device(), source.queue.get_device());
  sycl::queue queue = destination.queue;
  return queue.memcpy(destination.pointer, source.pointer, bytes, wait_events);
}

// Two chunks are under way at a time, one being read and one being written. Chunks go from the end to the
// start where the target overlaps its source from above, as memmove does.
inline sycl::event copy_staged(const copy_endpoint& destination, const copy_endpoint& source, std::size_t bytes,
                               const std::vector<sycl::event>& wait_events) {
  constexpr std::size_t chunk = staging_store::chunk_bytes;
  const std::size_t chunks = (bytes + chunk - 1) / chunk;
  const bool is_backwards = overlaps(destination, source, bytes) && destination.pointer > source.pointer;
  const auto buffers = std::make_shared<staging_buffers>(source.queue, std::min<std::size_t>(chunks, 3));
  std::vector<sycl::event> written(buffers->size());
  sycl::queue reader = source.queue, writer = destination.queue;
  sycl::event last;
  for (std::size_t i = 0; i < chunks; ++i) {
    const std::size_t slot = i % buffers->size();
    const std::size_t offset = (is_backwards ? chunks - 1 - i : i) * chunk;
    const std::size_t length = std::min(chunk, bytes - offset);
    std::vector<sycl::event> slot_is_free = i < buffers->size() ? wait_events : std::vector{written[slot]};
    const sycl::event read = reader.memcpy((*buffers)[slot], source.pointer + offset, length, slot_is_free);
    std::vector<sycl::event> ready{read};
    if (i > 0) ready.push_back(last);
    last = written[slot] = writer.memcpy(destination.pointer + offset, (*buffers)[slot], length, ready);
  }
  // The buffers live until the last chunk is out of them.
  if (!isthmus::detail::can_run_host_work(writer.get_device())) {
    last.wait();
    return last;
  }
  return writer.submit([&](sycl::handler& handler) {
    handler.depends_on(last);
    isthmus::detail::host_work(handler, [buffers] {});
  });
}

}  // namespace detail

/// Copies bytes between memory of any two SYCL devices, also from context to context, where a plain memcpy
/// would silently do nothing. Ranges of one device may overlap: they move as if all had been read first.
///
/// Starts after the events of `after` and, where the queues are in order, after their earlier work; later work
/// of in-order queues comes after it. The host does not wait, but for staged copies on AdaptiveCpp's GPU
/// backends, which have no commands that run on the host in time. Any thread.
/// @code
/// isthmus::memory::copy(destination_queue, to, source_queue, from, bytes, {produced}).wait();
/// @endcode
/// @param destination_queue A queue of the device and context that `to` belongs to.
/// @param destination Where the bytes go.
/// @param source_queue A queue of the device and context that `from` belongs to.
/// @param source Where they are.
/// @param bytes How many; 0 only orders.
/// @param wait_events Events that the copy waits for.
/// @param requested The path; automatic takes the first that is possible.
/// @return The event after which the bytes are there and the source may be overwritten.
/// @throws isthmus::exception ISTHMUS_ERROR_UNSUPPORTED for a path that these devices do not have;
///   _OUT_OF_MEMORY without pinned memory for staging.
inline sycl::event copy(const sycl::queue& destination_queue, void* destination, const sycl::queue& source_queue, const void* source,
                        std::size_t bytes, const std::vector<sycl::event>& wait_events = {},
                        path requested = path::automatic) {
  const detail::copy_endpoint destination_endpoint{destination_queue, static_cast<unsigned char*>(destination)};
  const detail::copy_endpoint source_endpoint{source_queue, static_cast<unsigned char*>(const_cast<void*>(source))};
  const path selected = detail::choose_path(destination_endpoint, source_endpoint, bytes, requested);
  std::vector<sycl::event> wait_list = wait_events;
  sycl::queue reader = source_queue, writer = destination_queue;
  if (reader.is_in_order()) wait_list.push_back(isthmus::detail::submit_marker(reader));
  if (writer.is_in_order()) wait_list.push_back(isthmus::detail::submit_marker(writer));
  if (bytes == 0 || destination == source) {
    return writer.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_list);
      isthmus::detail::submit_nothing(handler);
    });
  }
  const sycl::event done = selected == path::host     ? detail::copy_on_host(destination_endpoint, source_endpoint, bytes, wait_list)
                           : selected == path::direct ? detail::copy_directly(destination_endpoint, source_endpoint, bytes, wait_list)
                                                    : detail::copy_staged(destination_endpoint, source_endpoint, bytes, wait_list);
  // Later work of an in-order reading queue may overwrite the source.
  if (reader.is_in_order() && reader != writer) {
    reader.submit([&](sycl::handler& handler) {
      handler.depends_on(done);
      isthmus::detail::submit_nothing(handler);
    });
  }
  return done;
}

/// The path that copy() takes by itself; enqueues nothing.
/// @param destination_queue As for copy().
/// @param destination As for copy().
/// @param source_queue As for copy().
/// @param source As for copy().
/// @param bytes As for copy().
/// @return host, direct or staged.
inline path copy_path(const sycl::queue& destination_queue, const void* destination, const sycl::queue& source_queue,
                      const void* source, std::size_t bytes) {
  const auto pointer = [](const void* address) { return static_cast<unsigned char*>(const_cast<void*>(address)); };
  return detail::choose_path({destination_queue, pointer(destination)}, {source_queue, pointer(source)}, bytes, path::automatic);
}

}  // namespace isthmus::memory

#endif
