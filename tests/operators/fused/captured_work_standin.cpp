#include <utility>

#include "captured_work.hpp"
#include "standins/standin.h"

namespace fused_test {

captured_work::captured_work(void* stream, std::function<void()> work)
    : m_stream(stream), m_work(std::move(work)) {}
captured_work::~captured_work() = default;

void captured_work::launch() {
  standin_set_capturing(m_stream, 1);
  try {
    m_work();
  } catch (...) {
    standin_set_capturing(m_stream, 0);
    throw;
  }
  standin_set_capturing(m_stream, 0);
}

}  // namespace fused_test
