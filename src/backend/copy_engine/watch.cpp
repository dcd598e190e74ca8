#include "backend/copy_engine/watch.hpp"

#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "backend/copy_engine/overseer.hpp"

namespace isthmus::copy_engine {
namespace {

constexpr auto interval = std::chrono::milliseconds(20);

}  // namespace

watch& watch::instance() {
  static watch one;
  return one;
}

// Communicators that outlive static objects are not looked after any more.
watch::~watch() {
  {
    const std::lock_guard lock(m_mutex);
    ++m_generation;
    m_woken = true;
  }
  m_changed.notify_all();
  if (m_thread.joinable()) m_thread.join();
}

void watch::add(overseer& one) {
  const std::lock_guard lock(m_mutex);
  m_overseers.push_back(&one);
  if (!m_thread.joinable()) m_thread = std::thread([this, own = ++m_generation] { run(own); });
}

void watch::remove(overseer& one) {
  std::thread ended;
  {
    const std::lock_guard lock(m_mutex);
    std::erase(m_overseers, &one);
    if (m_overseers.empty()) {
      ++m_generation;
      m_woken = true;
      ended = std::exchange(m_thread, {});
    }
  }
  m_changed.notify_all();
  if (ended.joinable()) ended.join();
}

void watch::wake() {
  {
    const std::lock_guard lock(m_mutex);
    m_woken = true;
  }
  m_changed.notify_all();
}

void watch::run(std::uint64_t own) {
  std::unique_lock lock(m_mutex);
  while (own == m_generation) {
    const auto now = overseer::clock::now();
    for (overseer* one : m_overseers) {
      try {
        one->look(now);
      } catch (const std::exception& caught) {
        one->give_up({ISTHMUS_ERROR_BACKEND, std::string("the device failed: ") + caught.what(), ""});
      }
    }
    m_changed.wait_for(lock, interval, [&] { return std::exchange(m_woken, false); });
  }
}

}  // namespace isthmus::copy_engine
