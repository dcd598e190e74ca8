// The stand-in's wires: shared memory with one mailbox for every ordered pair of ranks, so that ranks may
// be threads of one process or processes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace standin {

// A ring of bytes with one writer and one reader.
struct mailbox {
  static constexpr std::size_t capacity = 32 * 1024;
  std::atomic<std::uint64_t> written{0}, read{0};
  char data[capacity];

  // Moves what fits now; returns how much that was.
  std::size_t put(const char* from, std::size_t bytes);
  std::size_t take(char* to, std::size_t bytes);
};

class mailboxes {
 public:
  // All ranks that give the same name share them. `name` is unguessable by construction.
  mailboxes(const std::string& name, int size);
  ~mailboxes();
  mailboxes(const mailboxes&) = delete;
  mailboxes& operator=(const mailboxes&) = delete;

  // Counts this rank in and waits for the others; false when `stop` said so first.
  bool wait_for_all(const std::function<bool()>& is_stopped);
  mailbox& box(int from, int to) { return m_boxes[from * m_size + to]; }
  int size() const { return m_size; }

 private:
  std::string m_name;
  int m_size;
  std::size_t m_bytes;
  void* m_memory;
  std::atomic<int>* m_arrived;
  mailbox* m_boxes;
};

}  // namespace standin
