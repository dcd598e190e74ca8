#include "runtime/watchdog.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/communicator.hpp"
#include "runtime/log.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

// Backends that do bound their waits report with more detail; they get this long to come first.
constexpr double grace_factor = 1.05;
constexpr double grace_s = 0.5;

class watchdog {
 public:
  static watchdog& instance() {
    static watchdog dog;
    return dog;
  }

  void add(const std::shared_ptr<communicator>& rank) {
    {
      const std::lock_guard lock(m_mutex);
      m_watched.push_back({rank, 0, clock::now()});
      if (!m_thread.joinable()) m_thread = std::thread([this] { loop(); });
    }
    m_changed.notify_all();
  }

  ~watchdog() {
    {
      const std::lock_guard lock(m_mutex);
      m_stop = true;
    }
    m_changed.notify_all();
    if (!m_thread.joinable()) return;
    // A backend's abort may end the process (MPI_Abort) from the watchdog's own thread.
    if (m_thread.get_id() == std::this_thread::get_id())
      m_thread.detach();
    else
      m_thread.join();
  }

 private:
  struct entry {
    std::weak_ptr<communicator> rank;
    std::uint64_t sequence;
    clock::time_point since;
  };

  void loop() {
    std::unique_lock lock(m_mutex);
    while (!m_stop) {
      double pause = 1.0;
      std::vector<std::shared_ptr<communicator>> stuck;
      std::erase_if(m_watched, [&](entry& watched) { return !look(watched, pause, stuck); });
      lock.unlock();
      for (const auto& rank : stuck) bite(*rank);
      stuck.clear();
      lock.lock();
      if (!m_stop) m_changed.wait_for(lock, seconds(pause));
    }
  }

  // False when the communicator is gone. Lowers `pause` to a tenth of the shortest timeout.
  static bool look(entry& watched, double& pause, std::vector<std::shared_ptr<communicator>>& stuck) {
    auto rank = watched.rank.lock();
    if (!rank) return false;
    pause = std::clamp(rank->timeout_s() / 10, 0.01, pause);
    const flight now = rank->in_flight();
    if (!now.busy || now.sequence != watched.sequence) {
      watched.sequence = now.sequence;
      watched.since = clock::now();
    } else if (seconds(clock::now() - watched.since).count() > rank->timeout_s() * grace_factor + grace_s &&
               !rank->poisoned()) {
      stuck.push_back(std::move(rank));
    }
    return true;
  }

  static void bite(communicator& rank) {
    const flight stuck = rank.in_flight();
    isthmus_error_info failure =
        make_error(
            ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
            fmt::format(
                "rank {} of {} has been inside {} of {} x {} for longer than the timeout of {} s (operation "
                "{} of this communicator); the native library does not return",
                rank.ranks().rank, rank.ranks().size, isthmus_collective_name(stuck.collective), stuck.count,
                isthmus_datatype_name(stuck.datatype), rank.timeout_s(), stuck.sequence),
            "some rank did not call the same collective, or it is gone; timeout_s in the config raises the "
            "bound")
            .info();
    failure.rank = rank.ranks().rank;
    failure.collective = stuck.collective;
    log(log_level::error, "{}; {}", failure.message, failure.hint);
    rank.poison(failure);
  }

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::vector<entry> m_watched;
  std::thread m_thread;
  bool m_stop = false;
};

}  // namespace

void watch(const std::shared_ptr<communicator>& rank) { watchdog::instance().add(rank); }

}  // namespace isthmus
