// Communication of the stand-ins: shared memory with one mailbox per ordered pair of ranks. Ranks may
// be threads or processes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace standin {

// A ring buffer of bytes with one writer and one reader.
struct mailbox {
  static constexpr std::size_t capacity = 32 * 1024;
  std::atomic<std::uint64_t> written{0}, read{0};
  char data[capacity];

  // Moves as many bytes as fit without blocking. Returns their number.
  std::size_t put(const char* from, std::size_t bytes);
  std::size_t take(char* to, std::size_t bytes);
};

class mailboxes {
 public:
  // All ranks that pass the same name share the mailboxes. The name must not be guessable.
  mailboxes(const std::string& name, int size);
  ~mailboxes();
  mailboxes(const mailboxes&) = delete;
  mailboxes& operator=(const mailboxes&) = delete;

  // Waits until all ranks have arrived. Returns false if the stop function returns true first.
  bool wait_for_all(const std::function<bool()>& is_stopped);
  mailbox& box(int from, int to) { return m_boxes[from * m_size + to]; }
  int size() const { return m_size; }

 private:
  std::string m_name;
  int m_size;
  std::size_t m_bytes;
  void* m_memory;
  std::atomic<int>* m_arrivals;
  mailbox* m_boxes;
};

}  // namespace standin
