// Batches the commands for one stream: consecutive word operations become one driver command, and consecutive
// copies are issued together. For small messages, the number of commands determines the duration of a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/driver.hpp"

namespace isthmus::copy_engine {

class command_batch {
 public:
  // `batch_bytes`: consecutive copies between devices of at least this total size are issued as one batch,
  // smaller ones one by one.
  command_batch(device_driver& driver, int device, std::uint64_t batch_bytes)
      : m_driver(driver), m_device(device), m_batch_bytes(batch_bytes) {}

  void start_on(native_stream stream) {
    m_stream = stream;
    m_words.clear();
    m_copies.clear();
    m_forces_batch = false;
  }
  native_stream stream() const { return m_stream; }

  // Makes the stream wait until the word equals `value`.
  void wait_equal(std::uint32_t* word, std::uint32_t value) { add({word_action::wait_equal, word, value}); }
  // Writes the word after all earlier work of the stream has become visible to every device.
  void write(std::uint32_t* word, std::uint32_t value) { add({word_action::write, word, value}); }
  // Copies between two word operations are not ordered among themselves.
  void copy(std::byte* destination, const std::byte* source, std::uint64_t bytes) {
    if (bytes == 0 || destination == source) return;
    flush_words();
    m_copies.push_back({destination, source, bytes});
  }
  // Copies within the device. The copy is issued as a batch, because only the batch call can request
  // the copy engines.
  void copy_local(std::byte* destination, const std::byte* source, std::uint64_t bytes) {
    copy(destination, source, bytes);
    m_forces_batch = m_forces_batch || !m_copies.empty();
  }
  // Issues all added commands. Copies added later are ordered after them.
  void flush() {
    flush_words();
    flush_copies();
  }

  // Launches a kernel with one parameter after all commands added before.
  void launch(native_kernel kernel, unsigned blocks, unsigned threads, void* argument) {
    flush();
    m_driver.launch(m_device, kernel, blocks, threads, {&argument, 1}, m_stream);
  }

  // Records the event after all commands added so far.
  void record(native_event event) {
    flush();
    m_driver.record(m_device, event, m_stream);
  }
  // Orders commands added from now on after the event's most recent record.
  void wait(native_event event) {
    flush();
    m_driver.wait(m_device, m_stream, event);
  }
  // Orders commands added from now on after the commands added to `other` so far.
  void follow(command_batch& other, native_event event) {
    flush();
    other.record(event);
    wait(event);
  }

 private:
  void add(word_step step) {
    flush_copies();
    m_words.push_back(step);
  }
  void flush_words() {
    if (!m_words.empty()) m_driver.enqueue_words(m_device, m_words, m_stream);
    m_words.clear();
  }
  void flush_copies() {
    if (m_copies.empty()) return;
    std::uint64_t bytes = 0;
    for (const device_copy& item : m_copies) bytes += item.bytes;
    if (m_forces_batch || bytes >= m_batch_bytes)
      m_driver.copy(m_device, m_copies, m_stream);
    else
      m_driver.copy_each(m_device, m_copies, m_stream);
    m_copies.clear();
    m_forces_batch = false;
  }

  device_driver& m_driver;
  int m_device;
  std::uint64_t m_batch_bytes;
  native_stream m_stream = nullptr;
  std::vector<word_step> m_words;
  std::vector<device_copy> m_copies;
  bool m_forces_batch = false;  // independent of batch_bytes
};

}  // namespace isthmus::copy_engine
