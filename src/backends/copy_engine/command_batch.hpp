// Commands for one stream, gathered: neighbouring words go to the driver as one command, neighbouring copies
// together. A call's time at small sizes is the number of its commands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/driver.hpp"

namespace isthmus::copy_engine {

class command_batch {
 public:
  // `batch_bytes`: from so many bytes on, neighbouring copies between devices go as one batch, else one by one.
  command_batch(device_driver& driver, int device, std::uint64_t batch_bytes)
      : m_driver(driver), m_device(device), m_batch_bytes(batch_bytes) {}

  void start_on(native_stream stream) {
    m_stream = stream;
    m_words.clear();
    m_copies.clear();
    m_forces_batch = false;
  }
  native_stream stream() const { return m_stream; }

  // The stream stops here until the word has that very value.
  void wait_equal(std::uint32_t* word, std::uint32_t value) { add({word_action::wait_equal, word, value}); }
  // After everything before it is visible to every device.
  void write(std::uint32_t* word, std::uint32_t value) { add({word_action::write, word, value}); }
  // Copies between two words have no order among themselves.
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    if (bytes == 0 || to == from) return;
    flush_words();
    m_copies.push_back({to, from, bytes});
  }
  // Within the device: as a batch, which lets one ask for the copy engines.
  void copy_local(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    copy(to, from, bytes);
    m_forces_batch = m_forces_batch || !m_copies.empty();
  }
  // Makes a copy wait for the copies before it.
  void flush() {
    flush_words();
    flush_copies();
  }

  // A kernel of one parameter, behind everything before it.
  void launch(native_kernel kernel, unsigned blocks, unsigned threads, void* argument) {
    flush();
    m_driver.launch(m_device, kernel, blocks, threads, {&argument, 1}, m_stream);
  }

  // The event is reached with everything that this batch has been given so far.
  void record(native_event event) {
    flush();
    m_driver.record(m_device, event, m_stream);
  }
  // Everything that this batch does from now on comes after the event's last record.
  void wait(native_event event) {
    flush();
    m_driver.wait(m_device, m_stream, event);
  }
  // Everything that this batch does from now on comes after what `other` has been given so far.
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
  bool m_forces_batch = false;  // whatever their bytes
};

}  // namespace isthmus::copy_engine
