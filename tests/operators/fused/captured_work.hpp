#pragma once

#include <functional>

namespace fused_test {

// Work of a stream that is captured into a graph, which can be launched repeatedly. The stand-ins do not record work:
// there, every launch does the work again, while the stream reports that it is being captured.
class captured_work {
 public:
  captured_work(void* stream, std::function<void()> work);
  ~captured_work();
  captured_work(const captured_work&) = delete;
  captured_work& operator=(const captured_work&) = delete;

  void launch();

 private:
  void* m_stream;
  std::function<void()> m_work;
  void* m_graph = nullptr;
};

}  // namespace fused_test
