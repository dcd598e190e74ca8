#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "bootstrap/tcp_server.hpp"

namespace isthmus::tcp {
namespace {

// Stores of failed creations that stay open for ranks that join late. Each one needs a descriptor.
constexpr std::ptrdiff_t max_abandoned_stores = 16;
constexpr double linger_s = 5;  // for ranks that are still reading when this process exits

class service {
 public:
  // `previous`: a service of this process that accepts no new stores, or nullptr.
  service(pid_t owner, std::unique_ptr<service> previous) : m_owner(owner), m_previous(std::move(previous)) {}
  ~service() {
    if (m_thread.joinable()) m_thread.join();
  }
  service(const service&) = delete;
  service& operator=(const service&) = delete;

  pid_t owner() const { return m_owner; }

  // Returns false if this service accepts no new stores.
  bool add(std::unique_ptr<server>& store) {
    const std::lock_guard lock(m_mutex);
    if (m_has_own_descriptors) return false;
    if (m_previous != nullptr && m_previous->has_ended()) m_previous.reset();
    if (!m_is_running) start();
    m_new_stores.push_back(std::move(store));
    wake();
    return true;
  }

  void stop() {
    request_stop();
    for (service* each = this; each != nullptr; each = each->m_previous.get())
      if (each->m_thread.joinable()) each->m_thread.join();
  }

 private:
  void request_stop() {
    const std::lock_guard lock(m_mutex);
    if (m_previous != nullptr) m_previous->request_stop();
    m_is_stopping = true;
    wake();
  }

  bool has_ended() {
    const std::lock_guard lock(m_mutex);
    return !m_is_running;
  }

  // start and wake: the caller holds the mutex.
  void start() {
    if (m_thread.joinable()) m_thread.join();  // the thread returned because no store was left
    m_wake = file_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (m_wake.get() < 0)
      throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE, fmt::format("eventfd: {}", std::strerror(errno)),
                       "raise the limit of open files (ulimit -n)", errno);
    m_thread = std::thread([this] { loop(); });
    m_is_running = true;
  }

  void wake() {
    const std::uint64_t wake_count = 1;
    if (m_wake.get() < 0) return;
    [[maybe_unused]] const ssize_t ignored = write(m_wake.get(), &wake_count, sizeof wake_count);
  }

  void loop() {
    std::vector<std::unique_ptr<server>> stores;
    clock::time_point linger_deadline = clock::time_point::max();
    while (adopt_new_stores(stores, linger_deadline)) {
      poll_once(stores);
      const bool lacks_descriptors =
          std::ranges::any_of(stores, [](const auto& store) { return store->lacks_descriptors(); });
      if (lacks_descriptors && !m_has_own_descriptors) use_own_descriptors(stores);
    }
  }

  // Gives this thread its own descriptor table, which contains only the descriptors of its stores. Ranks can then
  // connect although the process has no free descriptor, and get the reason from a rank that lacks them. Another
  // service must serve new stores, because this thread cannot use their descriptors.
  void use_own_descriptors(std::vector<std::unique_ptr<server>>& stores) {
    const std::lock_guard lock(m_mutex);
    std::ranges::move(m_new_stores, std::back_inserter(stores));
    m_new_stores.clear();
    std::vector<int> moved;
    for (const auto& store : stores) std::ranges::copy(store->descriptors(), std::back_inserter(moved));
    try {
      enum outcome : std::uint8_t { pending, shared, unshared };
      std::atomic<outcome> result = pending;
      const std::jthread process_thread([&] {
        result.wait(pending);
        if (result == unshared)
          for (const int descriptor : moved) close(descriptor);
      });
      m_has_own_descriptors = unshare(CLONE_FILES) == 0;
      result = m_has_own_descriptors ? unshared : shared;
      result.notify_one();
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): no thread, so the ranks must wait
    }
    if (m_has_own_descriptors) close_all_except(std::move(moved));
  }

  // Keeps the standard descriptors and m_wake. Other threads use m_wake in the table of the process.
  void close_all_except(std::vector<int> kept) const {
    kept.push_back(m_wake.get());
    std::ranges::sort(kept);
    auto begin = static_cast<unsigned>(STDERR_FILENO) + 1;
    for (const int descriptor : kept) {
      const auto end = static_cast<unsigned>(descriptor);
      if (end > begin) close_range(begin, end - 1, 0);
      begin = std::max(begin, end + 1);
    }
    close_range(begin, ~0u, 0);
  }

  // Returns false if the thread must end. The eventfd is then closed.
  bool adopt_new_stores(std::vector<std::unique_ptr<server>>& stores, clock::time_point& linger_deadline) {
    const std::lock_guard lock(m_mutex);
    std::ranges::move(m_new_stores, std::back_inserter(stores));
    m_new_stores.clear();
    std::erase_if(stores, [](const auto& store) { return store->is_done(); });
    auto abandoned_stores =
        std::ranges::count_if(stores, [](const auto& store) { return store->is_abandoned(); });
    std::erase_if(stores, [&](const auto& store) {  // the oldest first
      return store->is_abandoned() && abandoned_stores-- > max_abandoned_stores;
    });
    if (m_is_stopping) {
      if (linger_deadline == clock::time_point::max()) linger_deadline = deadline_after(linger_s);
      const bool is_past_deadline = clock::now() >= linger_deadline;
      std::erase_if(stores,
                    [&](const auto& store) { return is_past_deadline || !store->has_connected_ranks(); });
    }
    if (!stores.empty()) return true;
    if (!m_has_own_descriptors) m_wake = file_descriptor();
    m_is_running = false;
    return false;
  }

  void poll_once(const std::vector<std::unique_ptr<server>>& stores) {
    std::vector<pollfd> entries{{m_wake.get(), POLLIN, 0}};
    std::vector<std::size_t> end_indices;
    double timeout_s = 60;
    for (const auto& store : stores) {
      timeout_s = std::min(timeout_s, store->add_entries(entries));
      end_indices.push_back(entries.size());
    }
    if (m_is_stopping) timeout_s = std::min(timeout_s, 0.2);
    poll(entries.data(), entries.size(), static_cast<int>(std::ceil(std::max(0.0, timeout_s) * 1000)));
    if (entries[0].revents != 0) {
      std::uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t count = read(m_wake.get(), &ignored, sizeof ignored);
    }
    std::size_t begin = 1;
    for (std::size_t i = 0; i < stores.size(); begin = end_indices[i++])
      stores[i]->serve(std::span(entries).subspan(begin, end_indices[i] - begin));
  }

  const pid_t m_owner;
  std::unique_ptr<service> m_previous;
  std::mutex m_mutex;
  std::vector<std::unique_ptr<server>> m_new_stores;
  bool m_is_running = false, m_has_own_descriptors = false;
  std::atomic<bool> m_is_stopping{false};
  file_descriptor m_wake;
  std::thread m_thread;
};

// Never destroyed: a forked child has a copy of this object, but not the thread.
std::atomic<service*> current{nullptr};

struct service_stopper {
  ~service_stopper() {
    service* const instance = current.load();
    if (instance != nullptr && instance->owner() == getpid()) instance->stop();
  }
};

}  // namespace

void serve_store(std::unique_ptr<server> store) {
  static std::mutex mutex;
  static const service_stopper stopper;
  const std::lock_guard lock(mutex);
  service* const instance = current.load();
  const bool is_own = instance != nullptr && instance->owner() == getpid();
  if (is_own && instance->add(store)) return;
  auto next = std::make_unique<service>(getpid(), std::unique_ptr<service>(is_own ? instance : nullptr));
  current.store(next.get());
  next.release()->add(store);
}

}  // namespace isthmus::tcp
