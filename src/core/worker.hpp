// A thread that runs one job at a time for one rank. Each start() must be followed by one successful wait.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace isthmus {

class worker_thread {
 public:
  worker_thread();
  ~worker_thread();
  worker_thread(const worker_thread&) = delete;
  worker_thread& operator=(const worker_thread&) = delete;

  // `job` must not throw.
  void start(std::function<void()> job);
  void wait();
  // Blocking: waits at most `seconds`. Returns false if the job has not finished.
  bool wait_for(double seconds);

 private:
  void loop();

  std::mutex m_mutex;
  std::condition_variable m_condition;
  std::function<void()> m_job;
  bool m_is_busy = false;
  bool m_should_stop = false;
  std::thread m_thread;  // last member, because the thread uses the other members
};

}  // namespace isthmus
