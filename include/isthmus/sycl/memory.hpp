// Memory of SYCL devices: plain blocks without a host mirror, blocks of the symmetric heap, and copies between
// devices (memory_copy.hpp). Header-only, built on memory.h. docs/guide/memory.md explains providers and pools.
//
//   auto* data = isthmus::memory::allocate<float>(queue, count);            // a plain block
//   isthmus::memory::array<float> scratch(queue, count);                    // a block that frees itself
//   isthmus::memory::copy(destination_queue, destination, source_queue, source, bytes).wait();
//   auto* shared = isthmus::memory::allocate_symmetric<float>(ranks, count);
#ifndef ISTHMUS_SYCL_MEMORY_HPP
#define ISTHMUS_SYCL_MEMORY_HPP

#include <isthmus/memory.h>

#include <isthmus/sycl/communicator.hpp>
#include <isthmus/sycl/group.hpp>
#include <isthmus/sycl/memory_copy.hpp>
#include <limits>
#include <map>
#include <memory>
#include <string>

namespace isthmus::memory {

/// The properties of a plain block: begin, bytes, device, provider, and whether it belongs to a pool.
using block_info = isthmus_memory_info;

namespace detail {

// Registers sycl::malloc_device as a memory provider of the core. A device tries it last, because some drivers
// mirror its blocks in host memory. There is one provider per device, in the context of the first call.
class sycl_provider {
 public:
  sycl_provider(const sycl::queue& queue) : m_device(queue.get_device()), m_context(queue.get_context()) {}

  // Returns the process's provider for `device`. The first call registers it with the core. It is never
  // destroyed, because blocks may be freed after static objects have been destroyed.
  static sycl_provider& get(isthmus_device device, const sycl::queue& queue) {
    static std::mutex& mutex = *new std::mutex;
    static auto& providers = *new std::map<std::pair<int, int>, std::unique_ptr<sycl_provider>>;
    const std::lock_guard lock(mutex);
    auto& provider = providers[{device.platform, device.ordinal}];
    if (provider) return *provider;
    auto new_provider = std::make_unique<sycl_provider>(queue);
    const isthmus_memory_provider functions{.struct_bytes = sizeof functions,
                                            .name = "sycl",
                                            .context = new_provider.get(),
                                            .allocate = &allocate,
                                            .free = &free};
    isthmus::detail::check(isthmus_memory_register(device, &functions));
    provider = std::move(new_provider);
    return *provider;
  }

  const sycl::context& context() const { return m_context; }

 private:
  static constexpr std::uint64_t alignment = 256;
  static constexpr std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max() - alignment;

  /// The functions that the core calls. They return a failure as a number, because exceptions must not pass
  /// through a C function pointer.
  static int allocate(void* self, std::uint64_t bytes, void** pointer) noexcept {
    const auto& provider = *static_cast<sycl_provider*>(self);
    try {
      // AdaptiveCpp accepts only multiples of the alignment.
      const std::uint64_t rounded_bytes =
          bytes > max_bytes ? bytes : (bytes + alignment - 1) / alignment * alignment;
      *pointer = sycl::aligned_alloc_device(alignment, rounded_bytes, provider.m_device, provider.m_context);
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
  sycl::context m_context;  // of the first queue; its blocks are valid in no other context
};

/// Returns the core's device for a queue. Uses the default configuration, because there is no communicator.
inline isthmus_device device_of(const sycl::queue& queue) {
  return isthmus::detail::native_device(queue.get_device(), nullptr);
}

// Returns the size of `count` elements in bytes; throws if it exceeds std::size_t.
template <typename Type>
std::size_t bytes_of(const char* function, std::size_t count) {
  if (count <= std::numeric_limits<std::size_t>::max() / sizeof(Type)) return count * sizeof(Type);
  throw make_exception({.message = std::string(function) + ": count = " + std::to_string(count) +
                                   " elements of " + std::to_string(sizeof(Type)) + " bytes exceed std::size_t",
                        .hint = "pass count in elements, not in bytes"});
}

}  // namespace detail

/// Options for an allocation.
struct allocation_options {
  bool unpooled = false;  // a separate block from the driver, returned to it when freed
};

/// Finds the plain block that contains a pointer.
/// Thread safety: any thread.
/// @param pointer Any address of the block.
/// @return The properties of the block.
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT if no block contains the pointer because it
///   belongs to other memory of the program or to a freed block.
inline block_info query(const void* pointer) {
  block_info info{};
  isthmus::detail::check(isthmus_memory_query(pointer, &info));
  return info;
}

/// Frees a block from allocate() or allocate_bytes(). Does not wait, so first wait for all work that
/// uses the block.
/// Thread safety: any thread.
/// @param pointer The result of allocate(); may be null.
/// @param queue A queue of the device that the block was allocated for.
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT if the block has already been freed or the queue
///   belongs to another device.
inline void free(void* pointer, const sycl::queue& queue) {
  isthmus::detail::check(isthmus_memory_free_device(detail::device_of(queue), pointer));
}

/// Allocates memory on the queue's device for work in the queue's context, without a mirror in host memory if
/// one of the device's providers supports that. The host can read the memory only if the device is a CPU.
/// Thread safety: any thread.
/// @param queue Determines the device and the context; nothing is enqueued.
/// @param bytes The size; 0 returns null.
/// @param options Pooled (default) or a separate block.
/// @return A block with undefined contents, aligned to 256 bytes; free it with free().
/// @throws isthmus::exception ISTHMUS_ERROR_OUT_OF_MEMORY lists every provider that was tried; _UNSUPPORTED if
///   only sycl::malloc_device serves the device and it already serves another context.
inline void* allocate_bytes(const sycl::queue& queue, std::size_t bytes,
                            const allocation_options& options = {}) {
  const isthmus_device device = detail::device_of(queue);
  const detail::sycl_provider& fallback = detail::sycl_provider::get(device, queue);
  const isthmus_memory_options native{
      .struct_bytes = sizeof native,
      .unpooled = options.unpooled ? 1 : 0,
      .growable = 0,
      .native_context = isthmus::detail::native_memory_context(queue.get_context())};
  void* pointer = nullptr;
  isthmus::detail::check(isthmus_memory_allocate_device(device, bytes, &native, &pointer));
  if (pointer == nullptr || queue.get_device().is_cpu() || fallback.context() == queue.get_context() ||
      std::string_view(query(pointer).provider) != "sycl")
    return pointer;
  isthmus_memory_free_device(device, pointer);
  throw detail::make_exception(
      {.status = ISTHMUS_ERROR_UNSUPPORTED,
       .message = "allocate: only sycl::malloc_device serves this device, and its first block was in another "
                  "context than this queue's; all blocks must be in one context",
       .hint = "use one context per device, or allow the provider \"direct\""});
}

/// Allocates `count` elements with allocate_bytes().
/// @code
/// auto* data = isthmus::memory::allocate<float>(queue, 1 << 20);
/// queue.fill(data, 0.0F, 1 << 20).wait();
/// isthmus::memory::free(data, queue);
/// @endcode
/// @param queue Determines the device and the context.
/// @param count The number of elements, not bytes; 0 returns null.
/// @param options Pooled (default) or a separate block.
/// @return The first element; free it with free().
/// @throws isthmus::exception As allocate_bytes(); _INVALID_ARGUMENT if the size in bytes exceeds std::size_t.
template <typename Type>
Type* allocate(const sycl::queue& queue, std::size_t count, const allocation_options& options = {}) {
  return static_cast<Type*>(allocate_bytes(queue, detail::bytes_of<Type>("allocate", count), options));
}

/// Owns a plain block of `count` elements. Move-only. The destructor frees the block immediately, so first wait
/// for all work that uses it.
template <typename Type>
class array {
 public:
  /// Creates an empty array: data() is null and size() is 0.
  array() = default;
  /// @param queue Determines the device and the context.
  /// @param count The number of elements; 0 allocates nothing.
  /// @param options Pooled (default) or a separate block.
  /// @throws isthmus::exception As allocate().
  array(const sycl::queue& queue, std::size_t count, const allocation_options& options = {})
      : m_data(allocate<Type>(queue, count, options), block_deleter{detail::device_of(queue)}),
        m_count(count) {}

  /// Returns the first element, a device address; null if the array is empty.
  Type* data() const noexcept { return m_data.get(); }
  /// Returns the number of elements.
  std::size_t size() const noexcept { return m_count; }
  /// Returns the size in bytes.
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

/// Allocates a block of the communicator's symmetric heap. Every rank gets a block that the other ranks can
/// access, so collectives on it need no staging. Collective. If one process has several ranks, use one
/// thread per rank.
/// @code
/// float* shared = isthmus::memory::allocate_symmetric<float>(ranks, count);
/// ranks.allreduce(queue, shared, count).wait();
/// isthmus::memory::free_symmetric(ranks, shared);
/// @endcode
/// @param ranks The communicator whose ranks share the block.
/// @param count The number of elements; equal on all ranks.
/// @return This rank's block. The communicator owns the heap, so the block must not be used after the
///   communicator is destroyed.
/// @throws isthmus::exception ISTHMUS_ERROR_OUT_OF_MEMORY; _MISMATCH if the counts differ; _TIMEOUT if a rank
///   does not call in time; _INVALID_USAGE inside a group.
template <typename Type>
Type* allocate_symmetric(const communicator& ranks, std::size_t count) {
  void* pointer = nullptr;
  const auto allocate = [&] {
    isthmus::detail::check(isthmus_memory_allocate_symmetric(
        ranks.native(), detail::bytes_of<Type>("allocate_symmetric", count), &pointer));
  };
  if (isthmus::detail::thread_group().depth > 0)
    isthmus::detail::run_core_group(allocate);  // the core rejects it
  else
    allocate();
  return static_cast<Type*>(pointer);
}

/// Frees this rank's block. Not collective: does not wait for other ranks. Call it when no rank uses the block
/// anymore, for example after a barrier.
/// @param ranks The communicator that the block was allocated on.
/// @param pointer The result of allocate_symmetric().
/// @throws isthmus::exception ISTHMUS_ERROR_INVALID_ARGUMENT if the block belongs to another rank or has
///   already been freed.
inline void free_symmetric(const communicator& ranks, void* pointer) {
  isthmus::detail::check(isthmus_memory_free_symmetric(ranks.native(), pointer));
}

}  // namespace isthmus::memory

#endif
