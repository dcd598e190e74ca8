// Commands for one stream, gathered: neighbouring words go to the driver as one command, neighbouring copies
// as one batch. A call's time at small sizes is the number of its commands.
#pragma once

#include <cstddef>
#include <vector>

#include "memory/driver/device_driver.hpp"

namespace isthmus::copy_engine {

class lane {
 public:
  lane(device_driver& driver, int device) : m_driver(driver), m_device(device) {}

  void start_on(native_stream stream) {
    m_stream = stream;
    m_words.clear();
    m_copies.clear();
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
  // Makes a copy wait for the copies before it.
  void flush() {
    flush_words();
    flush_copies();
  }

  // Everything that this lane does from now on comes after what `other` has been given so far.
  void follow(lane& other, native_event event) {
    flush();
    other.flush();
    m_driver.record(m_device, event, other.m_stream);
    m_driver.wait(m_device, m_stream, event);
  }

 private:
  void add(word_step step) {
    flush_copies();
    m_words.push_back(step);
  }
  void flush_words() {
    if (!m_words.empty()) m_driver.words(m_device, m_words, m_stream);
    m_words.clear();
  }
  void flush_copies() {
    if (!m_copies.empty()) m_driver.copy(m_device, m_copies, m_stream);
    m_copies.clear();
  }

  device_driver& m_driver;
  int m_device;
  native_stream m_stream = nullptr;
  std::vector<word_step> m_words;
  std::vector<device_copy> m_copies;
};

}  // namespace isthmus::copy_engine
