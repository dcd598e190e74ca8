// Several ranks in this process, on sub-devices of the CPU if it can be partitioned.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <random>
#include <vector>

#include "portable.hpp"
#include "topology/threads.hpp"

namespace sycl_test {

inline std::vector<sycl::device> devices(int count) {
  const sycl::device cpu{sycl::cpu_selector_v};
  const auto units = cpu.get_info<sycl::info::device::max_compute_units>();
  const auto max_parts = cpu.get_info<sycl::info::device::partition_max_sub_devices>();  // AdaptiveCpp: none
  if (count == 1 || units < static_cast<unsigned>(count) || max_parts < static_cast<unsigned>(count))
    return std::vector<sycl::device>(static_cast<std::size_t>(count), cpu);
  auto parts = cpu.create_sub_devices<sycl::info::partition_property::partition_equally>(
      units / static_cast<unsigned>(count));
  parts.resize(static_cast<std::size_t>(count), cpu);
  return parts;
}

// An out-of-order queue that lives until the process ends. Intel's OpenCL CPU runtime deadlocks if the
// last reference to a queue of a sub-device is released while its last command retires: the command's
// thread destroys the command list and waits for itself (observed with 2026.22.10, in a few percent of
// runs on a busy machine).
inline sycl::queue persistent_queue(const sycl::context& context, const sycl::device& device) {
  static auto& queues = *new std::vector<sycl::queue>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return queues.emplace_back(context, device);
}
inline sycl::queue persistent_queue(const sycl::device& device) {
  return persistent_queue(sycl::context(device), device);
}

inline std::vector<int> random_ints(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<int> values(count);
  for (int& value : values) value = static_cast<int>(engine());
  return values;
}

constexpr int poison = 0x5a5a5a5a;

// The ranks, each with one queue and two USM arrays.
class ranks_of_one_process : public testing::Test {
 protected:
  static constexpr int size = 2;
  static constexpr std::size_t capacity = 4096;

  ranks_of_one_process() {
    for (int r = 0; r < size; ++r) {
      const auto& device = m_devices[static_cast<std::size_t>(r)];
      queues.emplace_back(device, sycl::property::queue::in_order{});
      send.push_back(sycl::malloc_shared<int>(capacity, queues.back()));
      recv.push_back(sycl::malloc_shared<int>(capacity, queues.back()));
      inputs.push_back(random_ints(capacity, static_cast<unsigned>(r) + 1));
      std::copy(inputs.back().begin(), inputs.back().end(), send.back());
      std::fill_n(recv.back(), capacity, poison);
    }
  }
  ~ranks_of_one_process() override {
    for (int r = 0; r < size; ++r) {
      sycl::free(send[static_cast<std::size_t>(r)], queues[static_cast<std::size_t>(r)]);
      sycl::free(recv[static_cast<std::size_t>(r)], queues[static_cast<std::size_t>(r)]);
    }
  }

  // The sum over ranks of element i, with Isthmus' integer wrapping.
  int sum(std::size_t i) const {
    unsigned total = 0;
    for (const auto& input : inputs) total += static_cast<unsigned>(input[i]);
    return static_cast<int>(total);
  }

  // Runs body(rank) in one thread per rank and rethrows the first failure.
  template <typename Body>
  void in_threads(Body body) {
    std::vector<std::exception_ptr> failures(size);
    topology::run_on_each_rank(size, [&](int r) {
      try {
        body(static_cast<std::size_t>(r));
      } catch (...) {
        failures[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

  std::vector<sycl::device> m_devices = devices(size);
  std::vector<isthmus::communicator> comms = isthmus::communicator::create_all(m_devices, {.timeout_s = 20});
  std::vector<sycl::queue> queues;
  std::vector<int*> send, recv;
  std::vector<std::vector<int>> inputs;
};

// Returns the exception that `call` throws; fails the test if it throws none.
template <typename Call>
isthmus::exception thrown_by(Call&& call) {
  try {
    call();
  } catch (const isthmus::exception& failure) {
    return failure;
  }
  ADD_FAILURE() << "no isthmus::exception was thrown";
  return isthmus::detail::make_exception({.message = "none"});
}

}  // namespace sycl_test
