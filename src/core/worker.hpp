// Threads that work for the ranks of one process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"
#include "failure/health.hpp"

namespace isthmus {

// A thread that runs one job at a time for one rank. Each start() must be followed by one successful wait.
class worker_thread {
 public:
  // `job` must not throw.
  void start(std::function<void()> job) {
    {
      const std::lock_guard lock(m_mutex);
      m_job = std::move(job);
      m_is_busy = true;
    }
    m_condition.notify_all();
  }
  void wait() {
    std::unique_lock lock(m_mutex);
    m_condition.wait(lock, [this] { return !m_is_busy; });
  }
  // Blocking: waits at most `seconds`. Returns false if the job has not finished.
  bool wait_for(double seconds) {
    std::unique_lock lock(m_mutex);
    return m_condition.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !m_is_busy; });
  }

 private:
  void loop(const std::stop_token& stop) {
    std::unique_lock lock(m_mutex);
    while (m_condition.wait(lock, stop, [this] { return m_is_busy; })) {
      const auto job = std::exchange(m_job, nullptr);
      lock.unlock();
      job();
      lock.lock();
      m_is_busy = false;
      m_condition.notify_all();
    }
  }

  std::mutex m_mutex;
  std::condition_variable_any m_condition;
  std::function<void()> m_job;
  bool m_is_busy = false;
  std::jthread m_thread{
      [this](const std::stop_token& stop) { loop(stop); }};  // last: it uses the other members
};

// Stores `failure` in `first` if `first` is empty or only a consequence of another rank's failure.
inline void keep_root_cause(std::optional<error>& first, const std::optional<error>& failure) {
  if (failure && (!first || is_secondary_status(first->info().status))) first = failure;
}

// Runs work(0) to work(n - 1) concurrently, each in its own thread, because each waits for other ranks, which may belong
// to the same calling thread. Returns the first failure, preferably the root cause.
template <typename Work>
std::optional<error> run_concurrently(std::size_t n, Work&& work) {
  std::vector<std::optional<error>> failures(n);
  {
    std::vector<std::jthread> threads;
    for (std::size_t index = 0; index < n; ++index)
      threads.emplace_back([&, index] { failures[index] = capture_error([&] { work(index); }); });
  }
  std::optional<error> first;
  for (const auto& failure : failures) keep_root_cause(first, failure);
  return first;
}

}  // namespace isthmus
