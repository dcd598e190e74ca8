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
  explicit entry(watch_rules rules) : m_rules(std::move(rules)) {}
  entry(const entry&) = delete;
  entry& operator=(const entry&) = delete;
  ~entry() { finish(); }

  std::chrono::milliseconds interval() const { return m_rules.interval; }
  void look(watchdog_clock::time_point now);
  // Waits for what runs in a thread of its own.
  void finish();

  // Of the looker.
  looker* by = nullptr;
  std::uint64_t number = 0;
  watchdog_clock::time_point due{};

 private:
  template <typename Work>
  void attempt(Work&& work);
  bool settle();
  void look_at_operation(watchdog_clock::time_point now);
  void report_stuck(watchdog_clock::time_point now);
  void act(std::function<void()> work);  // in a thread of its own

  const watch_rules m_rules;
  bool m_settled = false;  // on_abort has done what it can
  std::uint64_t m_id = 0;
  watchdog_clock::time_point m_since{}, m_waited{};
  const pid_t m_process = getpid();
  std::thread m_action;
  std::atomic<bool> m_acting{false};
};

template <typename Work>
void watch::entry::attempt(Work&& work) {
  try {
    work();
  } catch (const std::exception& caught) {
    if (m_rules.on_error) m_rules.on_error(caught.what());
  }
}

void watch::entry::look(watchdog_clock::time_point now) {
  attempt([&] {
    if (settle()) return;
    look_at_operation(now);
    settle();  // what was late is released at once
  });
}

// Whether somebody gave up.
bool watch::entry::settle() {
  if (!m_rules.aborted || !m_rules.aborted()) return false;
  if (!m_settled) m_settled = m_rules.on_abort();
  return true;
}

void watch::entry::look_at_operation(watchdog_clock::time_point now) {
  const watched_operation seen = m_rules.operation();
  if (seen.id != m_id || seen.id == 0) {
    m_id = seen.id;
    m_waited = now;
    m_since = seen.since.value_or(now);
  }
  if (m_id == 0) return;
  if (std::chrono::duration<double>(now - m_since) >= m_rules.timeout) {
    report_stuck(now);
  } else if (m_rules.on_wait && now - m_waited >= m_rules.wait_interval) {
    m_waited = now;
    if (m_rules.takes_long)
      act([this, id = m_id] { m_rules.on_wait(id); });
    else
      m_rules.on_wait(m_id);
  }
}

void watch::entry::report_stuck(watchdog_clock::time_point now) {
  if (m_rules.takes_long)
    act([this, id = m_id] { m_rules.on_stuck(id); });
  else if (!m_rules.on_stuck(m_id))
    m_since = now;
}

void watch::entry::act(std::function<void()> work) {
  if (m_acting.exchange(true)) return;
  finish();
  m_action = std::thread([this, work = std::move(work)] {
    attempt(work);
    m_acting = false;
  });
}

void watch::entry::finish() {
  if (!m_action.joinable()) return;
  if (m_action.get_id() == std::this_thread::get_id() || m_process != getpid())
    m_action.detach();  // its own function ends the process; or the thread is the parent's
  else
    m_action.join();
}

// ---- the thread --------------------------------------------------------------------------------------

class watch::looker {
 public:
  explicit looker(looker* inherited) : m_inherited(inherited) {}
  static looker& instance();

  void add(const std::shared_ptr<entry>& one);
  void remove(const std::shared_ptr<entry>& one);
  void wake(entry& one);
  // The process ends: what is still watched is not any more.
  void stop();
  // False in a child of the process that it was made in: fork copies no threads.
  bool is_of_this_process() const { return m_process == getpid(); }

 private:
  void start();
  void run(std::uint64_t own);
  void look_at_all(std::unique_lock<std::mutex>& lock);
  static void end(std::thread& thread);

  [[maybe_unused]] looker* const m_inherited;  // of the parent process, kept: watches may refer to it
  const pid_t m_process = getpid();
  std::mutex m_mutex;
  std::condition_variable m_changed, m_looked;
  std::map<std::uint64_t, std::shared_ptr<entry>> m_entries;  // by their numbers
  entry* m_current = nullptr;                                 // is being looked at
  std::uint64_t m_last_number = 0;
  std::thread m_thread;
  std::thread::id m_thread_id;
  std::uint64_t m_generation = 0;  // a thread ends when it is not its own any more
  bool m_woken = false, m_stopped = false;
};

// Never destroyed: what is watched may live as long as the process. Its thread ends before static objects do.
watch::looker& watch::looker::instance() {
  static std::atomic<looker*> current{nullptr};
  static const struct stopper {
    ~stopper() {
      if (looker* const last = current; last != nullptr && last->is_of_this_process()) last->stop();
    }
  } at_exit;
  looker* known = current;
  while (known == nullptr || !known->is_of_this_process()) {
    auto made = std::make_unique<looker>(known);
    if (current.compare_exchange_strong(known, made.get())) known = made.release();
  }
  return *known;
}

void watch::looker::start() {
  m_thread = std::thread([this, own = ++m_generation] { run(own); });
  m_thread_id = m_thread.get_id();
}

// A function of a watch may end the process (MPI_Abort).
void watch::looker::end(std::thread& thread) {
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id())
    thread.detach();
  else
    thread.join();
}

void watch::looker::add(const std::shared_ptr<entry>& one) {
  {
    const std::lock_guard lock(m_mutex);
    one->by = this;
    one->number = ++m_last_number;
    m_entries.emplace(one->number, one);
    m_woken = true;
    if (!m_thread.joinable() && !m_stopped) start();
  }
  m_changed.notify_all();
}

void watch::looker::remove(const std::shared_ptr<entry>& one) {
  if (!is_of_this_process()) return;
  std::thread ended;
  {
    std::unique_lock lock(m_mutex);
    m_entries.erase(one->number);
    if (std::this_thread::get_id() != m_thread_id) m_looked.wait(lock, [&] { return m_current != one.get(); });
    if (m_entries.empty()) {
      ++m_generation;
      ended = std::exchange(m_thread, {});
    }
  }
  m_changed.notify_all();
  end(ended);
}

void watch::looker::wake(entry& one) {
  if (!is_of_this_process()) return;
  {
    const std::lock_guard lock(m_mutex);
    one.due = {};
    m_woken = true;
  }
  m_changed.notify_all();
}

void watch::looker::stop() {
  std::thread ended;
  {
    const std::lock_guard lock(m_mutex);
    m_stopped = true;
    ++m_generation;
    ended = std::exchange(m_thread, {});
  }
  m_changed.notify_all();
  end(ended);
}

void watch::looker::run(std::uint64_t own) {
  std::unique_lock lock(m_mutex);
  while (own == m_generation) {
    m_woken = false;
    look_at_all(lock);
    auto next = watchdog_clock::now() + std::chrono::seconds(1);
    for (const auto& [number, one] : m_entries) next = std::min(next, one->due);
    m_changed.wait_until(lock, next, [&] { return m_woken || own != m_generation; });
  }
}

// Entries come and go meanwhile.
void watch::looker::look_at_all(std::unique_lock<std::mutex>& lock) {
  const std::uint64_t own = m_generation;
  std::uint64_t last = 0;
  while (own == m_generation) {
    const auto next = m_entries.upper_bound(last);
    if (next == m_entries.end()) return;
    last = next->first;
    const std::shared_ptr<entry> one = next->second;
    const auto now = watchdog_clock::now();
    if (now < one->due) continue;
    one->due = now + one->interval();
    m_current = one.get();
    lock.unlock();
    one->look(now);
    lock.lock();
    if (m_current == one.get()) m_current = nullptr;
    m_looked.notify_all();
  }
}

// ---- watches -----------------------------------------------------------------------------------------

watch::watch(watch_rules rules) : m_entry(std::make_shared<entry>(std::move(rules))) {
  looker::instance().add(m_entry);
}

watch::~watch() {
  m_entry->by->remove(m_entry);
  m_entry->finish();
}

void watch::wake() { m_entry->by->wake(*m_entry); }

}  // namespace isthmus
