// RAII device memory and streams for the GPU tests. Every native call is checked.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gpu {

int device_count();  // 0 without CUDA
void use_device(int device);

class stream {
 public:
  explicit stream(int device);
  ~stream();
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  void* native() const { return m_stream; }
  void synchronize() const;

 private:
  void* m_stream = nullptr;
};

// Memory of the current device.
class buffer {
 public:
  explicit buffer(std::size_t bytes);
  ~buffer();
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  std::byte* data() const { return m_data; }
  std::size_t bytes() const { return m_bytes; }
  // Stream-ordered. Blocking: return after the copy has completed.
  void write(std::span<const std::byte> from, const stream& queue, std::size_t offset = 0);
  std::vector<std::byte> read(const stream& queue) const;

 private:
  std::size_t m_bytes;
  std::byte* m_data = nullptr;
};

}  // namespace gpu
