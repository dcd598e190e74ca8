// Looks after the streams of one device plan: a stream that waits for a word of a rank that died would wait
// for ever, and nobody on the host would notice.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace isthmus::fused {

class sentinel {
 public:
  enum class state { idle, running };

  // `look` says whether a run is in progress and must not throw; `fail` is called once, from the sentinel's
  // thread, after one run has been in progress for `timeout_s` or `doomed` says that the communicator failed.
  sentinel(double timeout_s, std::function<state()> look, std::function<bool()> doomed,
           std::function<void(bool timed_out)> fail);
  ~sentinel();
  sentinel(const sentinel&) = delete;
  sentinel& operator=(const sentinel&) = delete;

  // Another run begins: its time starts when it does.
  void begin_run();

 private:
  void watch();

  double m_timeout_s;
  std::function<state()> m_look;
  std::function<bool()> m_doomed;
  std::function<void(bool)> m_fail;
  std::mutex m_mutex;
  std::condition_variable m_changed;
  bool m_stop = false, m_new_run = false;
  std::thread m_thread;  // last: it uses the others
};

}  // namespace isthmus::fused
