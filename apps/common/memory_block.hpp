// The memory of kernels and transports: a buffer or USM.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <sycl/sycl.hpp>
#include <utility>
#include <vector>

namespace apps {

using byte_buffer = sycl::buffer<unsigned char, 1>;

// A buffer, or a USM pointer with its owner.
struct memory_block {
  std::uint64_t bytes = 0;
  std::optional<byte_buffer> buffer;
  std::shared_ptr<void> usm;
};

inline memory_block make_buffer(std::uint64_t bytes) {
  return {bytes, byte_buffer(sycl::range<1>(std::max<std::uint64_t>(1, bytes))), nullptr};
}

inline memory_block make_usm(const sycl::queue& queue, std::uint64_t bytes) {
  void* const pointer = sycl::malloc_device(std::max<std::uint64_t>(1, bytes), queue);
  if (pointer == nullptr) throw std::bad_alloc();
  return {bytes, std::nullopt, std::shared_ptr<void>(pointer, [queue](void* old) { sycl::free(old, queue); })};
}

// A block of elements. Copies share the memory.
template <typename T>
class array {
 public:
  array() = default;
  explicit array(memory_block block) : m_block(std::move(block)) {}

  const memory_block& block() const { return m_block; }
  std::uint64_t size() const { return m_block.bytes / sizeof(T); }

  // read() and write() wait for earlier work on the array.
  std::vector<T> read(sycl::queue queue) {
    std::vector<T> values(size());
    if (m_block.buffer) {
      const sycl::host_accessor elements(*m_block.buffer, sycl::read_only);
      if (!values.empty()) std::memcpy(values.data(), &elements[0], m_block.bytes);
    } else {
      queue.memcpy(values.data(), m_block.usm.get(), m_block.bytes).wait();
    }
    return values;
  }
  void write(sycl::queue queue, const std::vector<T>& values) {
    const std::uint64_t bytes = std::min(m_block.bytes, std::uint64_t{values.size() * sizeof(T)});
    if (m_block.buffer) {
      const sycl::host_accessor elements(*m_block.buffer);
      if (!values.empty()) std::memcpy(&elements[0], values.data(), bytes);
    } else {
      queue.memcpy(m_block.usm.get(), values.data(), bytes).wait();
    }
  }

 private:
  memory_block m_block;
};

}  // namespace apps
