// Kernels of the device suite, and the gate that one of them waits for.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <type_traits>

#include "device_code/device_text.hpp"  // generated
#include "launcher.hpp"
#include "rank_team.hpp"
// after the headers that it needs
#include "device_code.hpp"

namespace sycl_device_test {

constexpr std::size_t count = 3000;           // elements that wait_for_flag writes
constexpr unsigned long max_polls = 500'000;  // each takes several microseconds across the bus

// Kernels belong to a context, and each rank's queue has its own context. They live until the process ends, because
// the OpenCL CPU runtime ends before static objects.
inline const apps::launcher& kernels_of(const test_rank& self) {
  static auto& launchers = *new std::map<int, apps::launcher>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto existing = launchers.find(self.rank);
  if (existing != launchers.end()) return existing->second;
  return launchers
      .try_emplace(
          self.rank, self.queue, device_code::device_text,
          std::vector{apps::source_of<device_code::wait_for_flag>(), apps::source_of<device_code::multiply>()})
      .first->second;
}

template <typename T>
apps::array<T> view(T* data, std::size_t elements) {
  void* const start = const_cast<std::remove_const_t<T>*>(data);
  return apps::array<T>({elements * sizeof(T), std::nullopt, {std::shared_ptr<void>(), start}});
}

// A gate that the host opens for a waiting kernel.
class kernel_gate {
 public:
  explicit kernel_gate(const sycl::queue& queue) : m_flag(1, queue, sycl::usm::alloc::host) {
    *m_flag.data() = 0;
  }
  ~kernel_gate() { open(); }
  void open() { std::atomic_ref(*m_flag.data()).store(1); }
  apps::array<const unsigned> flag() const { return view<const unsigned>(m_flag.data(), 1); }

 private:
  block<unsigned> m_flag;
};

// A kernel that writes 1000 * (rank + 1) + i to element i once the gate is open.
inline device_code::wait_for_flag make_waiting_kernel(const test_rank& self) {
  return {static_cast<float>(1000 * (self.rank + 1)), max_polls};
}

}  // namespace sycl_device_test
