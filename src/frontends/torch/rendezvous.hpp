// Adapts a torch.distributed store to the store interface that creates communicators.
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

#include "failure/wait.hpp"
#include "torch_versions.hpp"

namespace isthmus::torch_backend {

class store_rendezvous {
 public:
  // Clones the store, because a store that waits for a key blocks all other users of its connection. `nonblocking`: no
  // user of the store waits for a key.
  store_rendezvous(const c10::intrusive_ptr<c10d::Store>& store, const std::string& scope, bool nonblocking)
      : m_store(c10::make_intrusive<c10d::PrefixStore>(scope, nonblocking ? store : clone_store(store))),
        m_table{.struct_bytes = sizeof(isthmus_store_table),
                .context = this,
                .set = &store_rendezvous::set,
                .get = &store_rendezvous::get,
                .set_if_absent = &store_rendezvous::set_if_absent} {}
  store_rendezvous(const store_rendezvous&) = delete;
  store_rendezvous& operator=(const store_rendezvous&) = delete;

  const isthmus_store_table* table() const { return &m_table; }

  // Makes current and later waits fail until resume(). May be called from any thread.
  void cancel() noexcept { m_is_cancelled = true; }
  void resume() noexcept { m_is_cancelled = false; }

 private:
  static constexpr int ok = 0, timed_out = 1, failed = 2;

  // Calls write_value(store, content). Returns `failed` if it throws.
  template <typename Write>
  static int write(void* context, const char* key, const void* value, std::size_t bytes, Write&& write_value) {
    const auto* first = static_cast<const std::uint8_t*>(value);
    try {
      write_value(*static_cast<store_rendezvous*>(context)->m_store,
                  std::vector<std::uint8_t>(first, first + bytes));
      return ok;
    } catch (const std::exception& failure) {
      TORCH_WARN("isthmus: writing key ", key, " to the store failed: ", failure.what());
      return failed;
    }
  }
  static int set(void* context, const char* key, const void* value, std::size_t bytes) {
    return write(context, key, value, bytes,
                 [&](auto& store, const auto& content) { store.set(key, content); });
  }
  // All stores of PyTorch treat an empty expected value as "no value yet".
  static int set_if_absent(void* context, const char* key, const void* value, std::size_t bytes) {
    return write(context, key, value, bytes,
                 [&](auto& store, const auto& content) { store.compareSet(key, {}, content); });
  }

  // The bootstrap calls get() with timeouts of a fraction of a second, so it notices a cancellation.
  static int get(void* context, const char* key, void* value, std::size_t bytes, double timeout_s) {
    auto& self = *static_cast<store_rendezvous*>(context);
    if (self.m_is_cancelled) return failed;
    try {
      if (!self.wait_for_key(key, timeout_s)) return timed_out;
      const auto content = self.m_store->get(key);
      if (content.size() != bytes) return failed;
      std::memcpy(value, content.data(), bytes);
      return ok;
    } catch (const std::exception& failure) {
      TORCH_WARN("isthmus: reading key ", key, " from the store failed: ", failure.what());
      return failed;
    }
  }

  // Polls, because a timeout in the store's own wait() throws an exception with a stack trace.
  bool wait_for_key(const std::string& key, double timeout_s) {
    constexpr poll_pause pause{std::chrono::microseconds(200), std::chrono::milliseconds(10)};
    bool has_key = false;
    const auto has_ended = [&] {
      has_key = m_store->check({key});
      return has_key || m_is_cancelled;
    };
    poll_until(has_ended, deadline_after(timeout_s), pause);
    return has_key;
  }

  c10::intrusive_ptr<c10d::Store> m_store;
  isthmus_store_table m_table;
  std::atomic<bool> m_is_cancelled{false};
};

}  // namespace isthmus::torch_backend
