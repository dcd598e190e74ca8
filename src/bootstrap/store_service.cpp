#include "bootstrap/store_service.hpp"

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

namespace isthmus::tcp {
namespace {

constexpr double linger_s = 5;  // for ranks that still read when this process ends

class service {
 public:
  explicit service(pid_t owner) : m_owner(owner) {}

  pid_t owner() const { return m_owner; }

  void add(std::unique_ptr<server> store) {
    const std::lock_guard lock(m_mutex);
    if (!m_running) start();
    m_fresh.push_back(std::move(store));
    wake();
  }

  void stop() {
    {
      const std::lock_guard lock(m_mutex);
      m_stop = true;
      wake();
    }
    if (m_thread.joinable()) m_thread.join();
  }

 private:
  // With the mutex held, as for wake.
  void start() {
    if (m_thread.joinable()) m_thread.join();  // it ended for want of stores
    m_wake = descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (m_wake.get() < 0)
      throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE, fmt::format("eventfd: {}", std::strerror(errno)),
                       "raise the limit of open files (ulimit -n)", errno);
    m_thread = std::thread([this] { loop(); });
    m_running = true;
  }

  void wake() {
    const std::uint64_t one = 1;
    if (m_wake.get() < 0) return;
    [[maybe_unused]] const ssize_t ignored = write(m_wake.get(), &one, sizeof one);
  }

  void loop() {
    std::vector<std::unique_ptr<server>> stores;
    clock::time_point last_call = clock::time_point::max();
    while (take_fresh(stores, last_call)) round(stores);
  }

  // False when the thread is done; it has taken down what belongs to it then.
  bool take_fresh(std::vector<std::unique_ptr<server>>& stores, clock::time_point& last_call) {
    const std::lock_guard lock(m_mutex);
    std::ranges::move(m_fresh, std::back_inserter(stores));
    m_fresh.clear();
    std::erase_if(stores, [](const auto& store) { return store->done(); });
    if (m_stop) {
      if (last_call == clock::time_point::max()) last_call = deadline_after(linger_s);
      const bool late = clock::now() >= last_call;
      std::erase_if(stores, [&](const auto& store) { return late || !store->has_guests(); });
    }
    if (!stores.empty()) return true;
    m_wake = descriptor();
    m_running = false;
    return false;
  }

  void round(const std::vector<std::unique_ptr<server>>& stores) {
    std::vector<pollfd> entries{{m_wake.get(), POLLIN, 0}};
    std::vector<std::size_t> ends;
    double latest = 60;
    for (const auto& store : stores) {
      latest = std::min(latest, store->add_entries(entries));
      ends.push_back(entries.size());
    }
    if (m_stop) latest = std::min(latest, 0.2);
    poll(entries.data(), entries.size(), static_cast<int>(std::ceil(std::max(0.0, latest) * 1000)));
    if (entries[0].revents != 0) {
      std::uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t count = read(m_wake.get(), &ignored, sizeof ignored);
    }
    std::size_t begin = 1;
    for (std::size_t i = 0; i < stores.size(); begin = ends[i++])
      stores[i]->serve(std::span(entries).subspan(begin, ends[i] - begin));
  }

  const pid_t m_owner;
  std::mutex m_mutex;
  std::vector<std::unique_ptr<server>> m_fresh;
  bool m_running = false;
  std::atomic<bool> m_stop{false};
  descriptor m_wake;
  std::thread m_thread;
};

// Never destroyed: a forked child has copies of it whose thread does not exist.
std::atomic<service*> current{nullptr};

struct at_exit {
  ~at_exit() {
    service* const here = current.load();
    if (here != nullptr && here->owner() == getpid()) here->stop();
  }
};

service& service_here() {
  static std::mutex mutex;
  static const at_exit stopper;
  const std::lock_guard lock(mutex);
  service* here = current.load();
  if (here == nullptr || here->owner() != getpid()) {
    here = new service(getpid());
    current.store(here);
  }
  return *here;
}

}  // namespace

void host_store(std::unique_ptr<server> store) { service_here().add(std::move(store)); }

}  // namespace isthmus::tcp
