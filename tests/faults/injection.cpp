#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "faults/worker.hpp"

namespace faults {
namespace {

namespace fs = std::filesystem;

// Limits the address space to what is in use.
void exhaust_memory() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (8u << 20);
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
}

// Uses up all file descriptors.
void exhaust_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 256;
  setrlimit(RLIMIT_NOFILE, &limit);
  while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {
  }
}

// Like a pulled cable that both ends notice: shuts down all network connections of this process.
void cut_connections() {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage peer{};
    socklen_t bytes = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
      shutdown(fd, SHUT_RDWR);
  }
}

// Like a pulled cable that no end notices: packets are lost, but no connection breaks. This rank has its own
// network namespace (front_ends.py).
void drop_packets() {
  if (std::system("ip link set lan down") != 0) std::abort();
}

}  // namespace

void injection::schedule() {
  if (!m_is_faulty) return;
  if (m_spec.delay_us == 0) return inject();
  std::thread([self = *this] {
    std::this_thread::sleep_for(std::chrono::microseconds(self.m_spec.delay_us));
    self.inject();
  }).detach();
}

void injection::inject() const {
  const std::string& fault = m_spec.fault;
  write_event(m_spec, m_rank, {{"event", "fault"}});
  if (fault == "kill") kill(getpid(), SIGKILL);
  if (fault == "stop_short" || fault == "stop_long") kill(getpid(), SIGSTOP);
  if (fault == "exit") _exit(3);
  if (fault == "enomem") exhaust_memory();
  if (fault == "emfile") exhaust_descriptors();
  if (fault == "cut") cut_connections();
  if (fault == "drop") drop_packets();
  // The plug-in injects backend faults, and the campaign fills /dev/shm.
}

}  // namespace faults
