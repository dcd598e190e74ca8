// A thread that runs one job at a time for one rank.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace isthmus {

class worker {
 public:
  worker();
  ~worker();
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;

  // `job` must not throw. One start, then one wait.
  void start(std::function<void()> job);
  void wait();
  // The same for at most so long; false when the job still runs.
  bool wait_for(double seconds);

 private:
  void loop();

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::function<void()> m_job;
  bool m_is_busy = false;
  bool m_should_stop = false;
  std::thread m_thread;  // last: it uses the others
};

}  // namespace isthmus
