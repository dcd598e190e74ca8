// The driver's objects that a rank holds; released together, also when a constructor gives up half-way.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/driver/device_driver.hpp"

namespace isthmus::copy_engine {

class holdings {
 public:
  holdings(device_driver& driver, int device) : m_driver(driver), m_device(device) {}
  ~holdings();
  holdings(const holdings&) = delete;
  holdings& operator=(const holdings&) = delete;

  // Each throws isthmus::error.
  native_stream stream(stream_priority priority);
  native_event event();
  void* pinned(std::uint64_t bytes);  // zeros

  // Nobody gets the pinned memory after this rank: a stream that is stuck may still write to it.
  void keep_pinned() { m_pinned.clear(); }

 private:
  struct pinned_block {
    void* memory;
    std::uint64_t bytes;
  };

  device_driver& m_driver;
  int m_device;
  std::vector<native_stream> m_streams;
  std::vector<native_event> m_events;
  std::vector<pinned_block> m_pinned;
};

}  // namespace isthmus::copy_engine
