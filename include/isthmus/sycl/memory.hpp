// Memory of SYCL devices: plain blocks that cost no host memory, blocks of the symmetric heap, and copies
// between devices (memory_copy.hpp). Header-only over memory.h; docs/memory.md explains providers and pools.
//
//   auto* data = isthmus::memory::allocate<float>(queue, count);            // a plain block
//   isthmus::memory::array<float> scratch(queue, count);                    // the same, freed by its owner
//   isthmus::memory::copy(to_queue, to, from_queue, from, bytes).wait();    // also from context to context
//   auto* shared = isthmus::memory::allocate_symmetric<float>(ranks, count);
#ifndef ISTHMUS_SYCL_MEMORY_HPP
#define ISTHMUS_SYCL_MEMORY_HPP

#include <isthmus/memory.h>

#include <isthmus/sycl/communicator.hpp>
#include <isthmus/sycl/memory_copy.hpp>
#include <limits>
#include <map>
#include <memory>
#include <string>

namespace isthmus::memory {

// A plain block, as isthmus_memory_query tells.
using block_info = isthmus_memory_info;

namespace detail {

// sycl::malloc_device as a provider of the core: the last one that a device tries, because on some drivers
// every block of it is mirrored in host memory. One for each device, in the context that came first.
class sycl_provider {
 public:
  sycl_provider(const sycl::queue& queue) : m_device(queue.get_device()), m_context(queue.get_context()) {}

  // The process's provider of `device`, registered with the core at the first call. Never destroyed: blocks
  // may be freed when static objects are gone.
  static sycl_provider& of(isthmus_device device, const sycl::queue& queue) {
    static std::mutex& mutex = *new std::mutex;
    static auto& all = *new std::map<std::pair<int, int>, std::unique_ptr<sycl_provider>>;
    const std::lock_guard lock(mutex);
    auto& own = all[{device.platform, device.ordinal}];
    if (own) return *own;
    auto fresh = std::make_unique<sycl_provider>(queue);
    const isthmus_memory_provider functions{sizeof functions, "sycl", fresh.get(), &allocate, &free};
    isthmus::detail::check(isthmus_memory_register(device, &functions));
    own = std::move(fresh);
    return *own;
  }

  const sycl::context& context() const { return m_context; }

 private:
  static int allocate(void* self, std::uint64_t bytes, void** pointer) noexcept {
    const auto& own = *static_cast<sycl_provider*>(self);
    try {
      *pointer = sycl::aligned_alloc_device(256, bytes, own.m_device, own.m_context);
      return *pointer == nullptr ? 1 : 0;
    } catch (const sycl::exception& failure) {
      return failure.code().value();
    }
  }

  static int free(void* self, void* pointer) noexcept {
    try {
      sycl::free(pointer, static_cast<sycl_provider*>(self)->m_context);
      return 0;
    } catch (const sycl::exception& failure) {
      return failure.code().value();
    }
  }

  sycl::device m_device;
  sycl::context m_context;
};

inline isthmus_device device_of(const sycl::queue& queue) {
  return isthmus::detail::native_device(queue.get_device(), nullptr);
}

// Bytes of `count` elements; throws where they can't be counted.
template <typename Type>
std::size_t bytes_of(const char* function, std::size_t count) {
  if (count <= std::numeric_limits<std::size_t>::max() / sizeof(Type)) return count * sizeof(Type);
  throw make_exception({.message = std::string(function) + ": count = " + std::to_string(count) +
                                   " elements of " + std::to_string(sizeof(Type)) +
                                   " bytes are more than a size can hold",
                        .hint = "count is in elements, not in bytes"});
}

}  // namespace detail

struct options {
  bool unpooled = false;  // a block of its own from the driver, which gets it back when it is freed
};

// The plain block that holds `pointer`: its device, size and provider. Throws where there is none.
inline block_info query(const void* pointer) {
  block_info info{};
  isthmus::detail::check(isthmus_memory_query(pointer, &info));
  return info;
}

// Releases a block of allocate; the caller has waited for the work that uses it. Null is allowed. A second
// free and a queue of another device are errors.
inline void free(void* pointer, const sycl::queue& queue) {
  isthmus::detail::check(isthmus_memory_free_device(detail::device_of(queue), pointer));
}

// `bytes` bytes of the queue's device for work in the queue's context, aligned to 256, contents undefined;
// null for 0. The host can read it where the device is a CPU. Throws OUT_OF_MEMORY with everything that was
// tried. Any thread.
inline void* allocate_bytes(const sycl::queue& queue, std::size_t bytes, const options& wanted = {}) {
  const isthmus_device device = detail::device_of(queue);
  const detail::sycl_provider& fallback = detail::sycl_provider::of(device, queue);
  const isthmus_memory_options native{sizeof native, wanted.unpooled ? 1 : 0, 0,
                                      isthmus::detail::native_memory_context(queue.get_context())};
  void* pointer = nullptr;
  isthmus::detail::check(isthmus_memory_allocate_device(device, bytes, &native, &pointer));
  if (pointer == nullptr || queue.get_device().is_cpu() || fallback.context() == queue.get_context() ||
      std::string_view(query(pointer).provider) != "sycl")
    return pointer;
  isthmus_memory_free_device(device, pointer);
  throw detail::make_exception(
      {.status = ISTHMUS_ERROR_UNSUPPORTED,
       .message = "allocate: only sycl::malloc_device serves this device, and its first block was in another "
                  "context than this queue's",
       .hint = "use one context for a device, or allow the provider \"direct\""});
}

// The same for `count` elements.
template <typename Type>
Type* allocate(const sycl::queue& queue, std::size_t count, const options& wanted = {}) {
  return static_cast<Type*>(allocate_bytes(queue, detail::bytes_of<Type>("allocate", count), wanted));
}

// A plain block of `count` elements that is freed with its owner, which has waited for the work that uses it.
// Move-only.
template <typename Type>
class array {
 public:
  array() = default;
  array(const sycl::queue& queue, std::size_t count, const options& wanted = {})
      : m_data(allocate<Type>(queue, count, wanted), release{detail::device_of(queue)}), m_count(count) {}

  Type* data() const noexcept { return m_data.get(); }
  std::size_t size() const noexcept { return m_count; }
  std::size_t size_bytes() const noexcept { return m_count * sizeof(Type); }

 private:
  struct release {
    isthmus_device device{};
    void operator()(Type* pointer) const noexcept { isthmus_memory_free_device(device, pointer); }
  };
  std::unique_ptr<Type, release> m_data;
  std::size_t m_count = 0;
};

// ---- symmetric heap -------------------------------------------------------------------------------------

// A block of the communicator's symmetric heap: collective, the same count on every rank. Collectives on it
// are not staged. Several ranks of one process call it from a thread each.
template <typename Type>
Type* allocate_symmetric(const communicator& ranks, std::size_t count) {
  void* pointer = nullptr;
  isthmus::detail::check(isthmus_memory_allocate_symmetric(
      ranks.native(), detail::bytes_of<Type>("allocate_symmetric", count), &pointer));
  return static_cast<Type*>(pointer);
}

// Releases this rank's block; local.
inline void free_symmetric(const communicator& ranks, void* pointer) {
  isthmus::detail::check(isthmus_memory_free(ranks.native(), pointer));
}

}  // namespace isthmus::memory

#endif
