#include "core/worker.hpp"

#include <chrono>
#include <utility>

namespace isthmus {

worker_thread::worker_thread() : m_thread([this] { loop(); }) {}

worker_thread::~worker_thread() {
  {
    const std::lock_guard lock(m_mutex);
    m_should_stop = true;
  }
  m_condition.notify_all();
  m_thread.join();
}

void worker_thread::start(std::function<void()> job) {
  {
    const std::lock_guard lock(m_mutex);
    m_job = std::move(job);
    m_is_busy = true;
  }
  m_condition.notify_all();
}

void worker_thread::wait() {
  std::unique_lock lock(m_mutex);
  m_condition.wait(lock, [this] { return !m_is_busy; });
}

bool worker_thread::wait_for(double seconds) {
  std::unique_lock lock(m_mutex);
  return m_condition.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !m_is_busy; });
}

void worker_thread::loop() {
  std::unique_lock lock(m_mutex);
  while (true) {
    m_condition.wait(lock, [this] { return m_should_stop || m_is_busy; });
    if (!m_is_busy) return;
    const auto job = std::exchange(m_job, nullptr);
    lock.unlock();
    job();
    lock.lock();
    m_is_busy = false;
    m_condition.notify_all();
  }
}

}  // namespace isthmus
