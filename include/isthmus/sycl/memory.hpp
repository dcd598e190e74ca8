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

/// A plain block: where it begins, bytes, device, provider, and whether a pool has it.
using block_info = isthmus_memory_info;

namespace detail {

// sycl::malloc_device as a provider of the core: the last one that a device tries, because on some drivers
// every block of it is mirrored in host memory. One for each device, in the context that came first.
class sycl_provider {
 public:
  sycl_provider(const sycl::queue& queue) : m_device(queue.get_device()), m_context(queue.get_context()) {}

  // The process's provider of `device`, registered with the core at the first call. Never destroyed: blocks
  // may be freed when static objects are gone.
  static sycl_provider& get(isthmus_device device, const sycl::queue& queue) {
    static std::mutex& mutex = *new std::mutex;
    static auto& providers = *new std::map<std::pair<int, int>, std::unique_ptr<sycl_provider>>;
    const std::lock_guard lock(mutex);
    auto& provider = providers[{device.platform, device.ordinal}];
    if (provider) return *provider;
    auto new_provider = std::make_unique<sycl_provider>(queue);
    const isthmus_memory_provider functions{sizeof functions, "sycl", new_provider.get(), &allocate, &free};
    isthmus::detail::check(isthmus_memory_register(device, &functions));
    provider = std::move(new_provider);
    return *provider;
  }

  const sycl::context& context() const { return m_context; }

 private:
  static constexpr std::uint64_t alignment = 256;
  static constexpr std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max() - alignment;

  /// The core's function pointers: a failure is a number, no exception passes.
  static int allocate(void* self, std::uint64_t bytes, void** pointer) noexcept {
    const auto& provider = *static_cast<sycl_provider*>(self);
    try {
      // AdaptiveCpp takes only multiples of the alignment.
      const std::uint64_t rounded = bytes > max_bytes ? bytes : (bytes + alignment - 1) / alignment * alignment;
      *pointer = sycl::aligned_alloc_device(alignment, rounded, provider.m_device, provider.m_context);
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
  sycl::context m_context;  // of the queue that came first; its blocks are known in no other
};

/// The device as the core knows it; the configuration is the default one, because there is no communicator.
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

/// How a block is made.
struct allocation_options {
  bool unpooled = false;  // a block of its own from the driver, which gets it back when it is freed
};

/// Which plain block a pointer points into. Any thread.
/// @param pointer Any address of the block.
/// @return What the core knows about the block.
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT where no block holds it: memory of the program
///   itself, or freed before.
inline block_info query(const void* pointer) {
  block_info info{};
  isthmus::detail::check(isthmus_memory_query(pointer, &info));
  return info;
}

/// Releases a block of allocate() or allocate_bytes(). Does not wait: the caller has waited for the work that
/// uses it. Any thread.
/// @param pointer What allocate() returned; null is allowed.
/// @param queue A queue of the device that the block was made for.
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT for a second free and for a queue of another
///   device.
inline void free(void* pointer, const sycl::queue& queue) {
  isthmus::detail::check(isthmus_memory_free_device(detail::device_of(queue), pointer));
}

/// Memory of the queue's device for work in the queue's context, without a mirror in host memory where the
/// device has a provider that makes none. The host can read it where the device is a CPU. Any thread.
/// @param queue Names device and context; nothing is enqueued.
/// @param bytes How many; 0 gives null.
/// @param options Pooled (default) or a block of its own.
/// @return A block that is aligned to 256 bytes, contents undefined; for free().
/// @throws isthmus::exception ISTHMUS_ERROR_OUT_OF_MEMORY with every provider that was tried; _UNSUPPORTED
///   where only sycl::malloc_device serves the device and it served another context before.
inline void* allocate_bytes(const sycl::queue& queue, std::size_t bytes, const allocation_options& options = {}) {
  const isthmus_device device = detail::device_of(queue);
  const detail::sycl_provider& fallback = detail::sycl_provider::get(device, queue);
  const isthmus_memory_options native{sizeof native, options.unpooled ? 1 : 0, 0,
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

/// allocate_bytes() for `count` elements.
/// @code
/// auto* data = isthmus::memory::allocate<float>(queue, 1 << 20);
/// queue.fill(data, 0.0F, 1 << 20).wait();
/// isthmus::memory::free(data, queue);
/// @endcode
/// @param queue Names device and context.
/// @param count Elements, not bytes; 0 gives null.
/// @param options Pooled (default) or a block of its own.
/// @return The first element; for free().
/// @throws isthmus::exception As allocate_bytes(); _INVALID_ARGUMENT where the bytes are more than a size can
///   hold.
template <typename Type>
Type* allocate(const sycl::queue& queue, std::size_t count, const allocation_options& options = {}) {
  return static_cast<Type*>(allocate_bytes(queue, detail::bytes_of<Type>("allocate", count), options));
}

/// A plain block of `count` elements with an owner. Move-only. Its destructor frees at once: wait before for
/// the work that uses the block.
template <typename Type>
class array {
 public:
  /// No block: data() is null and size() is 0.
  array() = default;
  /// @param queue Names device and context.
  /// @param count Elements; 0 makes no block.
  /// @param options Pooled (default) or a block of its own.
  /// @throws isthmus::exception As allocate().
  array(const sycl::queue& queue, std::size_t count, const allocation_options& options = {})
      : m_data(allocate<Type>(queue, count, options), block_deleter{detail::device_of(queue)}), m_count(count) {}

  /// The first element, an address of the device; null without a block.
  Type* data() const noexcept { return m_data.get(); }
  /// Elements.
  std::size_t size() const noexcept { return m_count; }
  /// Bytes of the elements.
  std::size_t size_bytes() const noexcept { return m_count * sizeof(Type); }

 private:
  struct block_deleter {
    isthmus_device device{};
    void operator()(Type* pointer) const noexcept { isthmus_memory_free_device(device, pointer); }
  };
  std::unique_ptr<Type, block_deleter> m_data;
  std::size_t m_count = 0;
};

// ---- symmetric heap -------------------------------------------------------------------------------------

/// A block of the communicator's symmetric heap: every rank has one and the others can reach it, so collectives
/// on it are not staged. Collective; ranks of one process call it from a thread each.
/// @code
/// float* shared = isthmus::memory::allocate_symmetric<float>(ranks, count);
/// ranks.allreduce(queue, shared, count).wait();
/// isthmus::memory::free_symmetric(ranks, shared);
/// @endcode
/// @param ranks The communicator whose ranks share it.
/// @param count Elements, the same on every rank.
/// @return This rank's block; the communicator owns the heap, so the block is dead after it.
/// @throws isthmus::exception ISTHMUS_ERROR_OUT_OF_MEMORY; _MISMATCH where counts differ; _TIMEOUT where a rank
///   does not come.
template <typename Type>
Type* allocate_symmetric(const communicator& ranks, std::size_t count) {
  void* pointer = nullptr;
  isthmus::detail::check(isthmus_memory_allocate_symmetric(
      ranks.native(), detail::bytes_of<Type>("allocate_symmetric", count), &pointer));
  return static_cast<Type*>(pointer);
}

/// Releases this rank's block. Local: waits for nobody, so call it when no rank uses the block any more (after
/// a barrier, say).
/// @param ranks The communicator that it was allocated on.
/// @param pointer What allocate_symmetric() returned.
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT for a block of another rank and for a second free.
inline void free_symmetric(const communicator& ranks, void* pointer) {
  isthmus::detail::check(isthmus_memory_free(ranks.native(), pointer));
}

}  // namespace isthmus::memory

#endif
