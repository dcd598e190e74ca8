// Devices of the stand-ins: a stream is a thread with a queue, and an event is a counter.
// Internal to the library.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <thread>

namespace standin {

enum result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  no_device = 100,
  invalid_device = 101,
  invalid_handle = 400,
  not_ready = 600,
  illegal_address = 700,
  peer_already_enabled = 704,
  not_supported = 801,
  capture_unsupported = 900
};

// Runs tasks in order in a separate thread, like a device.
class stream {
 public:
  explicit stream(int device, unsigned flags = 0) : device(device), flags(flags), m_thread([this] { run(); }) {}
  ~stream() {
    {
      const std::lock_guard lock(m_mutex);
      m_stop = true;
    }
    m_changed.notify_all();
    m_thread.join();
  }
  void submit(std::function<void()> task) {
    {
      const std::lock_guard lock(m_mutex);
      m_tasks.push_back(std::move(task));
      ++m_submitted;
    }
    m_changed.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(m_mutex);
    const std::uint64_t ticket = m_submitted;
    m_changed.wait(lock, [&] { return m_completed >= ticket; });
  }
  bool idle() {
    const std::lock_guard lock(m_mutex);
    return m_completed == m_submitted;
  }
  const int device;
  const unsigned flags;                // 1: not synchronized with the default stream
  std::atomic<bool> capturing{false};  // set by tests; nothing is recorded

 private:
  void run() {
    std::unique_lock lock(m_mutex);
    while (true) {
      m_changed.wait(lock, [this] { return m_stop || !m_tasks.empty(); });
      if (m_tasks.empty()) return;
      const auto task = std::move(m_tasks.front());
      m_tasks.pop_front();
      lock.unlock();
      task();
      lock.lock();
      ++m_completed;
      m_changed.notify_all();
    }
  }

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::deque<std::function<void()>> m_tasks;
  std::uint64_t m_submitted = 0, m_completed = 0;
  bool m_stop = false;
  std::thread m_thread;
};

// Marks a position in a stream. The handle is a pointer to a shared_ptr, so an event can be destroyed while a
// thread waits for it.
struct event {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, reached = 0;
  std::chrono::steady_clock::time_point reach_time;  // time at which it was last reached
};

class machine {
 public:
  static machine& get() {
    static auto* const instance = new machine;  // streams may outlive static destruction
    return *instance;
  }
  std::atomic<int> device_count{8};
  static int& current() {
    thread_local int device = 0;
    return device;
  }

  stream* create(unsigned flags) {
    const std::lock_guard lock(m_mutex);
    auto new_stream = std::make_shared<stream>(current(), flags);
    stream* const raw = new_stream.get();
    m_streams[raw] = std::move(new_stream);
    return raw;
  }
  bool destroy(stream* target) {
    std::shared_ptr<stream> removed;
    {
      const std::lock_guard lock(m_mutex);
      const auto entry = m_streams.find(target);
      if (entry == m_streams.end()) return false;
      removed = std::move(entry->second);
      m_streams.erase(entry);
    }
    removed->synchronize();  // wait for all submitted tasks
    return true;
  }
  int streams() {
    const std::lock_guard lock(m_mutex);
    return static_cast<int>(m_streams.size());
  }
  std::atomic<int> live_events{0};

  stream& resolve(void* handle) {
    if (handle != nullptr) return *static_cast<stream*>(handle);
    const std::lock_guard lock(m_mutex);
    auto& new_stream = m_defaults[current()];
    if (new_stream == nullptr) new_stream = std::make_shared<stream>(current());
    return *new_stream;
  }
  // Waits for every stream of a device. Streams may be created and destroyed meanwhile.
  void synchronize(int device) {
    std::set<std::shared_ptr<stream>> all;
    {
      const std::lock_guard lock(m_mutex);
      for (auto& [raw, owned] : m_streams)
        if (owned->device == device) all.insert(owned);
      if (m_defaults[device] != nullptr) all.insert(m_defaults[device]);
    }
    for (const auto& each : all) each->synchronize();
  }
  // As in CUDA's driver, a call that frees memory holds the lock of its device until the streams of the device are
  // idle, and other calls also need the lock.
  std::shared_mutex& lock_of(int device) { return m_locks[static_cast<std::size_t>(device) % m_locks.size()]; }
  int bus_of(int device) {
    const std::lock_guard lock(m_mutex);
    const auto entry = m_aliases.find(device);
    return entry == m_aliases.end() ? device : entry->second;
  }
  void alias(int a, int b) {
    const std::lock_guard lock(m_mutex);
    m_aliases[a] = b;
  }

 private:
  std::array<std::shared_mutex, 16> m_locks;
  std::mutex m_mutex;
  std::map<stream*, std::shared_ptr<stream>> m_streams;
  std::map<int, std::shared_ptr<stream>> m_defaults;
  std::map<int, int> m_aliases;
};

}  // namespace standin
