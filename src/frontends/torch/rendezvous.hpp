// A torch.distributed store as the store through which the ranks of a communicator meet.
#pragma once

#include <isthmus/isthmus.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

namespace isthmus::torch_backend {

class rendezvous {
 public:
  // A connection of its own, because a store that waits for a key serves nobody else meanwhile.
  rendezvous(const c10::intrusive_ptr<c10d::Store>& store, const std::string& scope)
      : m_store(c10::make_intrusive<c10d::PrefixStore>(scope, store->clone())),
        m_table{sizeof(isthmus_store_table), this, &rendezvous::set, &rendezvous::get, &rendezvous::set_if_absent} {
  }
  rendezvous(const rendezvous&) = delete;
  rendezvous& operator=(const rendezvous&) = delete;

  const isthmus_store_table* table() const { return &m_table; }

  // Every wait, now and until resume(), fails. Any thread.
  void cancel() noexcept { m_is_cancelled = true; }
  void resume() noexcept { m_is_cancelled = false; }

 private:
  static constexpr int ok = 0, timed_out = 1, failed = 2;

  static int set(void* context, const char* key, const void* value, std::size_t bytes) {
    auto& self = *static_cast<rendezvous*>(context);
    try {
      const auto* first = static_cast<const std::uint8_t*>(value);
      self.m_store->set(key, std::vector<std::uint8_t>(first, first + bytes));
      return ok;
    } catch (const std::exception& failure) {
      TORCH_WARN("isthmus: the store could not set ", key, ": ", failure.what());
      return failed;
    }
  }

  // Every store of PyTorch's takes an empty expectation for "no value yet".
  static int set_if_absent(void* context, const char* key, const void* value, std::size_t bytes) {
    auto& self = *static_cast<rendezvous*>(context);
    try {
      const auto* first = static_cast<const std::uint8_t*>(value);
      self.m_store->compareSet(key, {}, std::vector<std::uint8_t>(first, first + bytes));
      return ok;
    } catch (const std::exception& failure) {
      TORCH_WARN("isthmus: the store could not set ", key, ": ", failure.what());
      return failed;
    }
  }

  // The bootstrap asks in slices of a fraction of a second, so a cancellation is noticed.
  static int get(void* context, const char* key, void* value, std::size_t bytes, double timeout_s) {
    auto& self = *static_cast<rendezvous*>(context);
    if (self.m_is_cancelled) return failed;
    try {
      if (!self.wait_for_key(key, timeout_s)) return timed_out;
      const auto stored = self.m_store->get(key);
      if (stored.size() != bytes) return failed;
      std::memcpy(value, stored.data(), bytes);
      return ok;
    } catch (const std::exception& failure) {
      TORCH_WARN("isthmus: the store could not get ", key, ": ", failure.what());
      return failed;
    }
  }

  // Polls: a store's own wait ends in an exception with a stack trace each time that its slice is over.
  bool wait_for_key(const std::string& key, double timeout_s) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    auto poll_interval = std::chrono::microseconds(200);
    while (!m_store->check({key})) {
      if (m_is_cancelled || std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(poll_interval);
      poll_interval = std::min(2 * poll_interval, std::chrono::microseconds(10000));
    }
    return true;
  }

  c10::intrusive_ptr<c10d::Store> m_store;
  isthmus_store_table m_table;
  std::atomic<bool> m_is_cancelled{false};
};

}  // namespace isthmus::torch_backend
