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
  explicit service(pid_t owner) : m_owner(owner) {}

  pid_t owner() const { return m_owner; }

  void add(std::unique_ptr<server> store) {
    const std::lock_guard lock(m_mutex);
    if (!m_is_running) start();
    m_new_stores.push_back(std::move(store));
    wake();
  }

  void stop() {
    {
      const std::lock_guard lock(m_mutex);
      m_is_stopping = true;
      wake();
    }
    if (m_thread.joinable()) m_thread.join();
  }

 private:
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
    while (adopt_new_stores(stores, linger_deadline)) poll_once(stores);
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
    m_wake = file_descriptor();
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
  std::mutex m_mutex;
  std::vector<std::unique_ptr<server>> m_new_stores;
  bool m_is_running = false;
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

service& current_service() {
  static std::mutex mutex;
  static const service_stopper stopper;
  const std::lock_guard lock(mutex);
  service* instance = current.load();
  if (instance == nullptr || instance->owner() != getpid()) {
    instance = new service(getpid());
    current.store(instance);
  }
  return *instance;
}

}  // namespace

void serve_store(std::unique_ptr<server> store) { current_service().add(std::move(store)); }

}  // namespace isthmus::tcp
