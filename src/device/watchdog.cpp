#include "device/watchdog.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace isthmus {

// ---- one thing that is watched -----------------------------------------------------------------------

class watch::entry {
 public:
  explicit entry(watch_options options) : m_options(std::move(options)) {}
  entry(const entry&) = delete;
  entry& operator=(const entry&) = delete;
  ~entry() { finish(); }

  std::chrono::milliseconds interval() const { return m_options.interval; }
  void check(watchdog_clock::time_point now);
  // Waits for what runs in a thread of its own.
  void finish();

  // Of the looker.
  watchdog_thread* owner = nullptr;
  std::uint64_t number = 0;
  watchdog_clock::time_point due{};

 private:
  template <typename Work>
  void report_exceptions(Work&& work);
  bool handle_abort();
  void check_operation(watchdog_clock::time_point now);
  void report_stuck(watchdog_clock::time_point now);
  void run_action(std::function<void()> work);  // in a thread of its own

  const watch_options m_options;
  bool m_is_released = false;  // on_abort has done what it can
  std::uint64_t m_id = 0;
  watchdog_clock::time_point m_since{}, m_waited{};
  const pid_t m_process = getpid();
  std::thread m_action_thread;
  std::atomic<bool> m_is_action_running{false};
};

template <typename Work>
void watch::entry::report_exceptions(Work&& work) {
  try {
    work();
  } catch (const std::exception& caught) {
    if (m_options.on_error) m_options.on_error(caught.what());
  }
}

void watch::entry::check(watchdog_clock::time_point now) {
  report_exceptions([&] {
    if (handle_abort()) return;
    check_operation(now);
    handle_abort();  // what was late is released at once
  });
}

// Whether somebody gave up.
bool watch::entry::handle_abort() {
  if (!m_options.aborted || !m_options.aborted()) return false;
  if (!m_is_released) m_is_released = m_options.on_abort();
  return true;
}

void watch::entry::check_operation(watchdog_clock::time_point now) {
  const watched_operation operation = m_options.operation();
  if (operation.id != m_id || operation.id == 0) {
    m_id = operation.id;
    m_waited = now;
    m_since = operation.since.value_or(now);
  }
  if (m_id == 0) return;
  if (std::chrono::duration<double>(now - m_since) >= m_options.timeout) {
    report_stuck(now);
  } else if (m_options.on_wait && now - m_waited >= m_options.wait_interval) {
    m_waited = now;
    if (m_options.has_slow_actions)
      run_action([this, id = m_id] { m_options.on_wait(id); });
    else
      m_options.on_wait(m_id);
  }
}

void watch::entry::report_stuck(watchdog_clock::time_point now) {
  if (m_options.has_slow_actions)
    run_action([this, id = m_id] { m_options.on_stuck(id); });
  else if (!m_options.on_stuck(m_id))
    m_since = now;
}

void watch::entry::run_action(std::function<void()> work) {
  if (m_is_action_running.exchange(true)) return;
  finish();
  m_action_thread = std::thread([this, work = std::move(work)] {
    report_exceptions(work);
    m_is_action_running = false;
  });
}

void watch::entry::finish() {
  if (!m_action_thread.joinable()) return;
  if (m_action_thread.get_id() == std::this_thread::get_id() || m_process != getpid())
    m_action_thread.detach();  // its own function ends the process; or the thread is the parent's
  else
    m_action_thread.join();
}

// ---- the thread --------------------------------------------------------------------------------------

class watch::watchdog_thread {
 public:
  explicit watchdog_thread(watchdog_thread* inherited) : m_inherited(inherited) {}
  static watchdog_thread& instance();

  void add(const std::shared_ptr<entry>& item);
  void remove(const std::shared_ptr<entry>& item);
  void wake(entry& item);
  // The process ends: what is still watched is not any more.
  void stop();
  // False in a child of the process that it was made in: fork copies no threads.
  bool is_own_process() const { return m_process == getpid(); }

 private:
  void start();
  void run(std::uint64_t own);
  void check_all(std::unique_lock<std::mutex>& lock);
  static void end(std::thread& thread);

  [[maybe_unused]] watchdog_thread* const m_inherited;  // of the parent process, kept: watches may refer to it
  const pid_t m_process = getpid();
  std::mutex m_mutex;
  std::condition_variable m_changed, m_checked;
  std::map<std::uint64_t, std::shared_ptr<entry>> m_entries;  // by their numbers
  entry* m_current = nullptr;                                 // is being looked at
  std::uint64_t m_last_number = 0;
  std::thread m_thread;
  std::thread::id m_thread_id;
  std::uint64_t m_generation = 0;  // a thread ends when it is not its own any more
  bool m_was_woken = false, m_is_stopped = false;
};

// Never destroyed: what is watched may live as long as the process. Its thread ends before static objects do.
watch::watchdog_thread& watch::watchdog_thread::instance() {
  static std::atomic<watchdog_thread*> current{nullptr};
  static const struct stopper {
    ~stopper() {
      if (watchdog_thread* const last = current; last != nullptr && last->is_own_process()) last->stop();
    }
  } at_exit;
  watchdog_thread* instance_now = current;
  while (instance_now == nullptr || !instance_now->is_own_process()) {
    auto created = std::make_unique<watchdog_thread>(instance_now);
    if (current.compare_exchange_strong(instance_now, created.get())) instance_now = created.release();
  }
  return *instance_now;
}

void watch::watchdog_thread::start() {
  m_thread = std::thread([this, own = ++m_generation] { run(own); });
  m_thread_id = m_thread.get_id();
}

// A function of a watch may end the process (MPI_Abort).
void watch::watchdog_thread::end(std::thread& thread) {
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id())
    thread.detach();
  else
    thread.join();
}

void watch::watchdog_thread::add(const std::shared_ptr<entry>& item) {
  {
    const std::lock_guard lock(m_mutex);
    item->owner = this;
    item->number = ++m_last_number;
    m_entries.emplace(item->number, item);
    m_was_woken = true;
    if (!m_thread.joinable() && !m_is_stopped) start();
  }
  m_changed.notify_all();
}

void watch::watchdog_thread::remove(const std::shared_ptr<entry>& item) {
  if (!is_own_process()) return;
  std::thread ended;
  {
    std::unique_lock lock(m_mutex);
    m_entries.erase(item->number);
    if (std::this_thread::get_id() != m_thread_id) m_checked.wait(lock, [&] { return m_current != item.get(); });
    if (m_entries.empty()) {
      ++m_generation;
      ended = std::exchange(m_thread, {});
    }
  }
  m_changed.notify_all();
  end(ended);
}

void watch::watchdog_thread::wake(entry& item) {
  if (!is_own_process()) return;
  {
    const std::lock_guard lock(m_mutex);
    item.due = {};
    m_was_woken = true;
  }
  m_changed.notify_all();
}

void watch::watchdog_thread::stop() {
  std::thread ended;
  {
    const std::lock_guard lock(m_mutex);
    m_is_stopped = true;
    ++m_generation;
    ended = std::exchange(m_thread, {});
  }
  m_changed.notify_all();
  end(ended);
}

void watch::watchdog_thread::run(std::uint64_t own) {
  std::unique_lock lock(m_mutex);
  while (own == m_generation) {
    m_was_woken = false;
    check_all(lock);
    auto next = watchdog_clock::now() + std::chrono::seconds(1);
    for (const auto& [number, item] : m_entries) next = std::min(next, item->due);
    m_changed.wait_until(lock, next, [&] { return m_was_woken || own != m_generation; });
  }
}

// Entries come and go meanwhile.
void watch::watchdog_thread::check_all(std::unique_lock<std::mutex>& lock) {
  const std::uint64_t own = m_generation;
  std::uint64_t last = 0;
  while (own == m_generation) {
    const auto next = m_entries.upper_bound(last);
    if (next == m_entries.end()) return;
    last = next->first;
    const std::shared_ptr<entry> item = next->second;
    const auto now = watchdog_clock::now();
    if (now < item->due) continue;
    item->due = now + item->interval();
    m_current = item.get();
    lock.unlock();
    item->check(now);
    lock.lock();
    if (m_current == item.get()) m_current = nullptr;
    m_checked.notify_all();
  }
}

// ---- watches -----------------------------------------------------------------------------------------

watch::watch(watch_options options) : m_entry(std::make_shared<entry>(std::move(options))) {
  watchdog_thread::instance().add(m_entry);
}

watch::~watch() {
  m_entry->owner->remove(m_entry);
  m_entry->finish();
}

void watch::wake() { m_entry->owner->wake(*m_entry); }

}  // namespace isthmus
