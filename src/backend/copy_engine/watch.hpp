// One thread of the process that looks after all ranks that copy engines serve in it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace isthmus::copy_engine {

class overseer;

class watch {
 public:
  static watch& instance();
  ~watch();

  void add(overseer& one);
  // Afterwards nobody looks at it. The thread ends with the last one.
  void remove(overseer& one);
  void wake();

 private:
  void run(std::uint64_t own);

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::vector<overseer*> m_overseers;
  std::thread m_thread;
  std::uint64_t m_generation = 0;  // a thread ends when it is not its own any more
  bool m_woken = false;
};

}  // namespace isthmus::copy_engine
