#include "core/worker.hpp"

#include <chrono>
#include <utility>

namespace isthmus {

worker::worker() : m_thread([this] { loop(); }) {}

worker::~worker() {
  {
    const std::lock_guard lock(m_mutex);
    m_should_stop = true;
  }
  m_changed.notify_all();
  m_thread.join();
}

void worker::start(std::function<void()> job) {
  {
    const std::lock_guard lock(m_mutex);
    m_job = std::move(job);
    m_is_busy = true;
  }
  m_changed.notify_all();
}

void worker::wait() {
  std::unique_lock lock(m_mutex);
  m_changed.wait(lock, [this] { return !m_is_busy; });
}

bool worker::wait_for(double seconds) {
  std::unique_lock lock(m_mutex);
  return m_changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !m_is_busy; });
}

void worker::loop() {
  std::unique_lock lock(m_mutex);
  while (true) {
    m_changed.wait(lock, [this] { return m_should_stop || m_is_busy; });
    if (!m_is_busy) return;
    const auto job = std::exchange(m_job, nullptr);
    lock.unlock();
    job();
    lock.lock();
    m_is_busy = false;
    m_changed.notify_all();
  }
}

}  // namespace isthmus
