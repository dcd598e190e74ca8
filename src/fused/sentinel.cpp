#include "fused/sentinel.hpp"

#include <chrono>
#include <optional>
#include <utility>

namespace isthmus::fused {

using clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds between_looks{100};

sentinel::sentinel(double timeout_s, std::function<state()> look, std::function<bool()> doomed,
                   std::function<void(bool)> fail)
    : m_timeout_s(timeout_s),
      m_look(std::move(look)),
      m_doomed(std::move(doomed)),
      m_fail(std::move(fail)),
      m_thread([this] { watch(); }) {}

sentinel::~sentinel() {
  {
    const std::lock_guard lock(m_mutex);
    m_stop = true;
  }
  m_changed.notify_all();
  m_thread.join();
}

void sentinel::begin_run() {
  const std::lock_guard lock(m_mutex);
  m_new_run = true;
}

void sentinel::watch() {
  std::optional<clock::time_point> since;
  std::unique_lock lock(m_mutex);
  while (!m_changed.wait_for(lock, between_looks, [this] { return m_stop; })) {
    if (std::exchange(m_new_run, false)) since.reset();
    lock.unlock();
    const bool running = m_look() == state::running;
    if (!running) since.reset();
    if (running && !since) since = clock::now();
    const bool late = since && std::chrono::duration<double>(clock::now() - *since).count() > m_timeout_s;
    const bool failed = late || m_doomed();
    if (failed) m_fail(late);
    lock.lock();
    if (failed) {
      m_changed.wait(lock, [this] { return m_stop; });
      return;
    }
  }
}

}  // namespace isthmus::fused
