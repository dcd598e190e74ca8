// Settings for ranks on devices, and their memory.
#pragma once

#include <cuda_runtime_api.h>
#include <isthmus/memory.h>

#include <cstring>

#include "node_ranks.hpp"

namespace hierarchical_test {

inline run_settings settings_for_devices(const std::vector<isthmus_platform>& platforms) {
  run_settings settings;
  settings.platforms = platforms;
  settings.config += "[backend.hierarchical]\nchunk_bytes = 4096\n";
  return settings;
}

// Memory of this rank's device or of the host. The host can access the memory of stand-ins; CUDA memory
// can be real.
class device_memory {
 public:
  device_memory(isthmus_platform platform, std::size_t bytes, int ordinal = 0)
      : m_device{platform, ordinal}, m_bytes(bytes) {
    EXPECT_EQ(isthmus_memory_allocate_device(m_device, bytes, nullptr, &m_memory), ISTHMUS_SUCCESS)
        << topology::last_error().message;
  }
  ~device_memory() { isthmus_memory_free_device(m_device, m_memory); }
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(m_memory) + offset; }
  void put(const void* from) { copy(m_memory, from); }
  void get(void* to) const { copy(to, m_memory); }

 private:
  void copy(void* to, const void* from) const {
    if (m_device.platform != ISTHMUS_PLATFORM_CUDA) {
      std::memcpy(to, from, m_bytes);
      return;
    }
    EXPECT_EQ(cudaMemcpyAsync(to, from, m_bytes, cudaMemcpyDefault, nullptr), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }

  isthmus_device m_device;
  std::size_t m_bytes;
  void* m_memory = nullptr;
};

}  // namespace hierarchical_test
