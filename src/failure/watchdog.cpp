#include "failure/watchdog.hpp"

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

// ---- one watched object ------------------------------------------------------------------------------

class watch::entry {
 public:
  explicit entry(watch_options options) : m_options(std::move(options)) {}
  entry(const entry&) = delete;
  entry& operator=(const entry&) = delete;
  ~entry() { finish(); }

  std::chrono::milliseconds interval() const { return m_options.interval; }
  void check(watchdog_clock::time_point now);
  // Waits for the action thread.
  void finish();

  // Used by the watchdog thread.
  watchdog_thread* owner = nullptr;
  std::uint64_t number = 0;
  watchdog_clock::time_point next_check{};

 private:
  template <typename Work>
  void report_exceptions(Work&& work);
  bool handle_abort();
  void check_operation(watchdog_clock::time_point now);
  void report_stuck(watchdog_clock::time_point now);
  void run_action(std::function<void()> work);  // runs in a separate thread

  const watch_options m_options;
  bool m_is_released = false;  // on_abort returned true
  std::uint64_t m_id = 0;
  watchdog_clock::time_point m_start_time{}, m_last_wait_report{};
  const pid_t m_process = getpid();
  std::thread m_action_thread;
  std::atomic<bool> m_is_action_running{false};
};

template <typename Work>
void watch::entry::report_exceptions(Work&& work) {
  try {
    work();
  } catch (const std::exception& failure) {
    if (m_options.on_error) m_options.on_error(failure.what());
  }
}

void watch::entry::check(watchdog_clock::time_point now) {
  report_exceptions([&] {
    if (handle_abort()) return;
    check_operation(now);
    handle_abort();  // releases a stuck operation without delay
  });
}

// Returns true if the communicator was aborted.
bool watch::entry::handle_abort() {
  if (!m_options.aborted || !m_options.aborted()) return false;
  if (!m_is_released) m_is_released = m_options.on_abort();
  return true;
}

void watch::entry::check_operation(watchdog_clock::time_point now) {
  const watched_operation operation = m_options.operation();
  if (operation.id != m_id || operation.id == 0) {
    m_id = operation.id;
    m_last_wait_report = now;
    m_start_time = operation.start_time.value_or(now);
  }
  if (m_id == 0) return;
  if (std::chrono::duration<double>(now - m_start_time) >= m_options.timeout) {
    report_stuck(now);
  } else if (m_options.on_wait && now - m_last_wait_report >= m_options.wait_interval) {
    m_last_wait_report = now;
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
    m_start_time = now;
}

void watch::entry::run_action(std::function<void()> work) {
  if (m_is_action_running.exchange(true)) return;
  finish();
  // The work may call finish(), which reads m_action_thread.
  const auto is_assigned = std::make_shared<std::atomic<bool>>(false);
  m_action_thread = std::thread([this, is_assigned, work = std::move(work)] {
    is_assigned->wait(false);
    report_exceptions(work);
    m_is_action_running = false;
  });
  *is_assigned = true;
  is_assigned->notify_one();
}

void watch::entry::finish() {
  if (!m_action_thread.joinable()) return;
  if (m_action_thread.get_id() == std::this_thread::get_id() || m_process != getpid())
    m_action_thread
        .detach();  // the action itself ends the process, or the thread belongs to the parent process
  else
    m_action_thread.join();
}

// ---- the watchdog thread -----------------------------------------------------------------------------

class watch::watchdog_thread {
 public:
  explicit watchdog_thread(watchdog_thread* parent) : m_parent(parent) {}
  static watchdog_thread& instance();

  void add(const std::shared_ptr<entry>& item);
  void remove(const std::shared_ptr<entry>& item);
  void wake(entry& item);
  // The process ends: stop watching.
  void stop();
  // False in a forked child of the process that created it, because fork does not copy threads.
  bool is_own_process() const { return m_process == getpid(); }

 private:
  void start();
  void run(std::uint64_t own);
  void check_all(std::unique_lock<std::mutex>& lock);
  static void end(std::thread& thread);

  [[maybe_unused]] watchdog_thread* const
      m_parent;  // of the parent process; not deleted, because watches may refer to it
  const pid_t m_process = getpid();
  std::mutex m_mutex;
  std::condition_variable m_changed, m_checked;
  std::map<std::uint64_t, std::shared_ptr<entry>> m_entries;  // by number
  entry* m_current = nullptr;                                 // the entry that is being checked
  std::uint64_t m_last_number = 0;
  std::thread m_thread;
  std::thread::id m_thread_id;
  std::uint64_t m_generation = 0;  // a thread ends when its generation is no longer current
  bool m_was_woken = false, m_is_stopped = false;
};

// Never destroyed, because watches can exist until the process ends. The thread ends before static
// objects are destroyed.
watch::watchdog_thread& watch::watchdog_thread::instance() {
  static std::atomic<watchdog_thread*> current{nullptr};
  static const struct exit_guard {
    ~exit_guard() {
      if (watchdog_thread* const last = current; last != nullptr && last->is_own_process()) last->stop();
    }
  } at_exit;
  watchdog_thread* previous = current;
  while (previous == nullptr || !previous->is_own_process()) {
    auto created = std::make_unique<watchdog_thread>(previous);
    if (current.compare_exchange_strong(previous, created.get())) previous = created.release();
  }
  return *previous;
}

void watch::watchdog_thread::start() {
  m_thread = std::thread([this, own = ++m_generation] { run(own); });
  m_thread_id = m_thread.get_id();
}

// A watch function may end the process (MPI_Abort), so this can run in the watchdog thread itself.
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
  std::thread finished_thread;
  {
    std::unique_lock lock(m_mutex);
    m_entries.erase(item->number);
    if (std::this_thread::get_id() != m_thread_id)
      m_checked.wait(lock, [&] { return m_current != item.get(); });
    if (m_entries.empty()) {
      ++m_generation;
      finished_thread = std::exchange(m_thread, {});
    }
  }
  m_changed.notify_all();
  end(finished_thread);
}

void watch::watchdog_thread::wake(entry& item) {
  if (!is_own_process()) return;
  {
    const std::lock_guard lock(m_mutex);
    item.next_check = {};
    m_was_woken = true;
  }
  m_changed.notify_all();
}

void watch::watchdog_thread::stop() {
  std::thread finished_thread;
  {
    const std::lock_guard lock(m_mutex);
    m_is_stopped = true;
    ++m_generation;
    finished_thread = std::exchange(m_thread, {});
  }
  m_changed.notify_all();
  end(finished_thread);
}

void watch::watchdog_thread::run(std::uint64_t own) {
  std::unique_lock lock(m_mutex);
  while (own == m_generation) {
    m_was_woken = false;
    check_all(lock);
    auto next = watchdog_clock::now() + std::chrono::seconds(1);
    for (const auto& [number, item] : m_entries) next = std::min(next, item->next_check);
    m_changed.wait_until(lock, next, [&] { return m_was_woken || own != m_generation; });
  }
}

// Entries may be added and removed during the loop.
void watch::watchdog_thread::check_all(std::unique_lock<std::mutex>& lock) {
  const std::uint64_t own = m_generation;
  std::uint64_t last = 0;
  while (own == m_generation) {
    const auto next = m_entries.upper_bound(last);
    if (next == m_entries.end()) return;
    last = next->first;
    const std::shared_ptr<entry> item = next->second;
    const auto now = watchdog_clock::now();
    if (now < item->next_check) continue;
    item->next_check = now + item->interval();
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
