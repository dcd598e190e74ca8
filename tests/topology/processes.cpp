#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <thread>

#include "topology/topology.hpp"

namespace topology {

std::byte* map_shared(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

void remove_recordings() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto at = line.find("/dev/shm/isthmus-"); at != std::string::npos)
      std::remove(line.substr(at).c_str());
}

int child_processes::exit_report::failures() const {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::printf("FAIL process %d was terminated by signal %d\n", process, WTERMSIG(status));
  return 1;
}

void child_processes::start(int process, const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    const int result = body();
    std::fflush(nullptr);
    std::_Exit(std::min(result, 100));
  }
  m_running.emplace_back(process, child);
}

std::vector<child_processes::exit_report> child_processes::join(std::chrono::seconds grace_period) {
  std::vector<exit_report> all;
  auto deadline = std::chrono::steady_clock::time_point::max();
  while (!m_running.empty()) {
    std::erase_if(m_running, [&](const std::pair<int, pid_t>& child) {
      int status = 0;
      if (waitpid(child.second, &status, WNOHANG) == 0) return false;
      if (!WIFEXITED(status)) deadline = std::min(deadline, std::chrono::steady_clock::now() + grace_period);
      all.push_back({child.first, status});
      return true;
    });
    if (std::chrono::steady_clock::now() > deadline)
      for (const auto& [process, child] : m_running) kill(child, SIGKILL);
    if (!m_running.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return all;
}

}  // namespace topology
