// Control functions of the stand-ins, and the operation that most contract tests use.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "harness.hpp"
#include "standin.h"

namespace steering {

template <typename Function>
Function standin_symbol(const char* name) {
  return reinterpret_cast<Function>(harness::standin("standin_nccl", name));
}
template <typename Function>
Function device(const char* name) {
  return reinterpret_cast<Function>(harness::standin("standin_device", name));
}
inline void fail_next(const char* function, int nth, int code) {
  standin_symbol<decltype(&standin_fail)>("standin_fail")(function, nth, code);
}
inline std::string calls() {
  std::string text(1 << 16, '\0');
  text.resize(standin_symbol<decltype(&standin_calls)>("standin_calls")(text.data(), text.size()) - 1);
  return text;
}
inline int live() {
  return standin_symbol<decltype(&standin_live_communicators)>("standin_live_communicators")();
}
// Aborted communicators are released in the background.
inline void expect_released() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (live() != 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(live(), 0);
}

inline isthmus_operation allreduce(harness::rank& self, float* data, std::uint64_t count) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.op = ISTHMUS_SUM;
  operation.count = count;
  operation.send_buf = operation.recv_buf = data;
  operation.stream = self.stream;
  return operation;
}

}  // namespace steering
