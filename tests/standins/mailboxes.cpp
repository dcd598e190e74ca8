#include "mailboxes.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace standin {

std::size_t mailbox::put(const char* from, std::size_t bytes) {
  const std::uint64_t position = written.load(std::memory_order_relaxed);
  const std::size_t free_bytes =
      capacity - static_cast<std::size_t>(position - read.load(std::memory_order_acquire));
  const std::size_t moved_bytes =
      std::min({bytes, free_bytes, capacity - static_cast<std::size_t>(position % capacity)});
  std::memcpy(data + position % capacity, from, moved_bytes);
  written.store(position + moved_bytes, std::memory_order_release);
  return moved_bytes;
}

std::size_t mailbox::take(char* to, std::size_t bytes) {
  const std::uint64_t position = read.load(std::memory_order_relaxed);
  const std::size_t available_bytes =
      static_cast<std::size_t>(written.load(std::memory_order_acquire) - position);
  const std::size_t moved_bytes =
      std::min({bytes, available_bytes, capacity - static_cast<std::size_t>(position % capacity)});
  std::memcpy(to, data + position % capacity, moved_bytes);
  read.store(position + moved_bytes, std::memory_order_release);
  return moved_bytes;
}

// New shared memory is zero, which is the initial state of all its contents.
mailboxes::mailboxes(const std::string& name, int size)
    : m_name("/" + name), m_size(size), m_bytes(64 + sizeof(mailbox) * static_cast<std::size_t>(size) * size) {
  const int file = shm_open(m_name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(m_bytes)) != 0)
    throw std::runtime_error("stand-in: no shared memory");
  m_memory = mmap(nullptr, m_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (m_memory == MAP_FAILED) throw std::runtime_error("stand-in: mmap failed");
  m_arrivals = static_cast<std::atomic<int>*>(m_memory);
  m_boxes = reinterpret_cast<mailbox*>(static_cast<char*>(m_memory) + 64);
}

mailboxes::~mailboxes() {
  munmap(m_memory, m_bytes);
  shm_unlink(m_name.c_str());
}

bool mailboxes::wait_for_all(const std::function<bool()>& is_stopped) {
  m_arrivals->fetch_add(1);
  while (m_arrivals->load() < m_size) {
    if (is_stopped()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  shm_unlink(m_name.c_str());
  return true;
}

}  // namespace standin
