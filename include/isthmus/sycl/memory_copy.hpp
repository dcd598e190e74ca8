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
struct side {
  sycl::queue queue;
  unsigned char* pointer;
};

/// One device in one context: the only case in which ranges can overlap.
inline bool same_memory(const side& one, const side& other) {
  return one.queue.get_context() == other.queue.get_context() &&
         one.queue.get_device() == other.queue.get_device();
}

/// Whether the two ranges have bytes in common.
inline bool overlap(const side& to, const side& from, std::size_t bytes) {
  return same_memory(to, from) && to.pointer < from.pointer + bytes && from.pointer < to.pointer + bytes;
}

/// SYCL promises a memcpy only between pointers that the queue's context knows; ranges that overlap are beyond
/// it.
inline bool can_be_direct(const side& to, const side& from, std::size_t bytes) {
  return to.queue.get_context() == from.queue.get_context() &&
         isthmus::detail::has_peer_access(to.queue.get_device(), from.queue.get_device()) && !overlap(to, from, bytes);
}

/// Whether both are memory of the host, and a command can run a memmove on it in time.
inline bool can_be_host(const side& to, const side& from) {
  return to.queue.get_device().is_cpu() && from.queue.get_device().is_cpu() &&
         isthmus::detail::can_run_host_work(to.queue.get_device());
}

/// The path that is taken; what the caller asked for and is not possible is refused, never replaced.
inline path choose(const side& to, const side& from, std::size_t bytes, path wanted) {
  const bool host = can_be_host(to, from), direct = can_be_direct(to, from, bytes);
  switch (wanted) {
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
                        .message = std::string("copy: path ") + (wanted == path::host ? "host" : "direct") +
                                   " is not possible between '" +
                                   from.queue.get_device().get_info<sycl::info::device::name>() + "' and '" +
                                   to.queue.get_device().get_info<sycl::info::device::name>() + "'",
                        .hint = "path::automatic takes what is possible"});
}

// Pinned memory is slow to make, so it is kept for the next copy of the same context, for the whole process:
// it is never given back, because a context may not outlive static objects.
class staging_store {
 public:
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20;

  static staging_store& instance() {
    static staging_store& once = *new staging_store;
    return once;
  }

  /// A chunk that the context can read and write; the caller gives it back.
  unsigned char* take(const sycl::queue& queue) {
    {
      const std::lock_guard lock(m_mutex);
      const auto found = std::find_if(m_idle.begin(), m_idle.end(),
                                      [&](const auto& entry) { return entry.first == queue.get_context(); });
      if (found != m_idle.end()) {
        unsigned char* pointer = found->second;
        m_idle.erase(found);
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

  void give_back(const sycl::context& context, unsigned char* pointer) {
    const std::lock_guard lock(m_mutex);
    m_idle.emplace_back(context, pointer);
  }

 private:
  std::mutex m_mutex;
  std::vector<std::pair<sycl::context, unsigned char*>> m_idle;
};

// The buffers of one copy, which go back when the copy is done.
class staging {
 public:
  explicit staging(const sycl::queue& queue, std::size_t count) : m_context(queue.get_context()) {
    for (std::size_t i = 0; i < count; ++i) m_buffers.push_back(staging_store::instance().take(queue));
  }
  ~staging() {
    for (unsigned char* buffer : m_buffers) staging_store::instance().give_back(m_context, buffer);
  }
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;
  unsigned char* operator[](std::size_t i) const { return m_buffers[i]; }
  std::size_t size() const { return m_buffers.size(); }

 private:
  sycl::context m_context;
  std::vector<unsigned char*> m_buffers;
};

/// A memmove in a command of the target's queue.
inline sycl::event copy_on_host(const side& to, const side& from, std::size_t bytes,
                                const std::vector<sycl::event>& wait_events) {
  sycl::queue queue = to.queue;
  return queue.submit([&](sycl::handler& handler) {
    handler.depends_on(wait_events);
    unsigned char* target = to.pointer;
    const unsigned char* source = from.pointer;
    isthmus::detail::host_work(handler, [=] { std::memmove(target, source, bytes); });
  });
}

/// A command of the target's queue: the side that waits for the bytes is the one that moves them.
inline sycl::event copy_directly(const side& to, const side& from, std::size_t bytes,
                                 const std::vector<sycl::event>& wait_events) {
  isthmus::detail::enable_peer_access(to.queue.get_device(), from.queue.get_device());
  sycl::queue queue = to.queue;
  return queue.memcpy(to.pointer, from.pointer, bytes, wait_events);
}

// Two chunks are under way at a time, one being read and one being written. Chunks go from the end to the
// start where the target overlaps its source from above, as memmove does.
inline sycl::event copy_staged(const side& to, const side& from, std::size_t bytes,
                               const std::vector<sycl::event>& wait_events) {
  constexpr std::size_t chunk = staging_store::chunk_bytes;
  const std::size_t chunks = (bytes + chunk - 1) / chunk;
  const bool backwards = overlap(to, from, bytes) && to.pointer > from.pointer;
  const auto buffers = std::make_shared<staging>(from.queue, std::min<std::size_t>(chunks, 3));
  std::vector<sycl::event> written(buffers->size());
  sycl::queue reader = from.queue, writer = to.queue;
  sycl::event last;
  for (std::size_t i = 0; i < chunks; ++i) {
    const std::size_t slot = i % buffers->size();
    const std::size_t offset = (backwards ? chunks - 1 - i : i) * chunk;
    const std::size_t length = std::min(chunk, bytes - offset);
    std::vector<sycl::event> free_again = i < buffers->size() ? wait_events : std::vector{written[slot]};
    const sycl::event read = reader.memcpy((*buffers)[slot], from.pointer + offset, length, free_again);
    std::vector<sycl::event> ready{read};
    if (i > 0) ready.push_back(last);
    last = written[slot] = writer.memcpy(to.pointer + offset, (*buffers)[slot], length, ready);
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
/// isthmus::memory::copy(to_queue, to, from_queue, from, bytes, {produced}).wait();
/// @endcode
/// @param to_queue A queue of the device and context that `to` belongs to.
/// @param to Where the bytes go.
/// @param from_queue A queue of the device and context that `from` belongs to.
/// @param from Where they are.
/// @param bytes How many; 0 only orders.
/// @param wait_events Events that the copy waits for.
/// @param wanted The path; automatic takes the first that is possible.
/// @return The event after which the bytes are there and the source may be overwritten.
/// @throws isthmus::exception ISTHMUS_ERROR_UNSUPPORTED for a path that these devices do not have;
///   _OUT_OF_MEMORY without pinned memory for staging.
inline sycl::event copy(const sycl::queue& to_queue, void* to, const sycl::queue& from_queue, const void* from,
                        std::size_t bytes, const std::vector<sycl::event>& wait_events = {},
                        path wanted = path::automatic) {
  const detail::side target{to_queue, static_cast<unsigned char*>(to)};
  const detail::side source{from_queue, static_cast<unsigned char*>(const_cast<void*>(from))};
  const path chosen = detail::choose(target, source, bytes, wanted);
  std::vector<sycl::event> wait_list = wait_events;
  sycl::queue reader = from_queue, writer = to_queue;
  if (reader.is_in_order()) wait_list.push_back(isthmus::detail::submit_marker(reader));
  if (writer.is_in_order()) wait_list.push_back(isthmus::detail::submit_marker(writer));
  if (bytes == 0 || to == from) {
    return writer.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_list);
      isthmus::detail::submit_nothing(handler);
    });
  }
  const sycl::event done = chosen == path::host     ? detail::copy_on_host(target, source, bytes, wait_list)
                           : chosen == path::direct ? detail::copy_directly(target, source, bytes, wait_list)
                                                    : detail::copy_staged(target, source, bytes, wait_list);
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
/// @param to_queue As for copy().
/// @param to As for copy().
/// @param from_queue As for copy().
/// @param from As for copy().
/// @param bytes As for copy().
/// @return host, direct or staged.
inline path copy_path(const sycl::queue& to_queue, const void* to, const sycl::queue& from_queue,
                      const void* from, std::size_t bytes) {
  const auto pointer = [](const void* of) { return static_cast<unsigned char*>(const_cast<void*>(of)); };
  return detail::choose({to_queue, pointer(to)}, {from_queue, pointer(from)}, bytes, path::automatic);
}

}  // namespace isthmus::memory

#endif
