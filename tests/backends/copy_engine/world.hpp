// A few ranks in one process, each with a device of its own made of threads, and a symmetric heap.
#pragma once

#include <isthmus/backend.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/copy_engine/session.hpp"
#include "conformance/test_case.hpp"
#include "standin_driver.hpp"

namespace copy_engine_test {

struct setup {
  int ranks = 2;
  isthmus::copy_engine::settings options{1 << 16, 4096, 1};
  behaviour how;
  double timeout_s = 60;
  std::uint64_t heap_bytes = 1 << 20;
};

class world;

class rank {
 public:
  rank(world& owner, int number);
  int number() const { return m_number; }
  standin_driver& driver() { return *m_driver; }
  standin_compiler& compiler() { return m_compiler; }
  isthmus::copy_engine::copy_engine_state& state() { return *m_state; }
  isthmus::native_stream stream() const { return m_stream; }
  // This rank's part of the symmetric heap.
  std::span<std::byte> heap();
  // What the backend reported last.
  isthmus_status status = ISTHMUS_SUCCESS;
  std::string message, hint;
  std::vector<std::string> logged;
  std::atomic<int> aborted{0};

  // Enqueues, and waits until the stream is through. The status of enqueue.
  isthmus_status run(const isthmus_operation& operation, const char* algorithm);
  isthmus_status enqueue(isthmus_operation operation, const char* algorithm);
  // One call of the conformance suite's kind, checked byte by byte: what is wrong, or nothing.
  std::optional<std::string> play(const conformance::test_case& test, const char* algorithm);
  void destroy_state() { m_state.reset(); }

 private:
  friend class world;
  isthmus_backend_context m_context{};
  world& m_world;
  int m_number;
  std::vector<std::byte> m_plain;
  std::mutex m_mutex;
  std::unique_ptr<standin_driver> m_driver;
  standin_compiler m_compiler;
  isthmus::native_stream m_stream;
  std::unique_ptr<isthmus::copy_engine::copy_engine_state> m_state;
};

class world {
 public:
  explicit world(const setup& with);
  ~world();
  rank& at(int number) { return *m_ranks[static_cast<std::size_t>(number)]; }
  int size() const { return m_with.ranks; }
  // Runs `work` on every rank, each in a thread of its own.
  void each(const std::function<void(rank&)>& work);

 private:
  friend class rank;
  setup m_with;
  std::vector<int> m_zeros;
  std::vector<std::vector<std::byte>> m_heap, m_shared;  // the users' block and the backend's, by rank
  std::vector<void*> m_heap_peers, m_shared_peers;
  std::vector<std::unique_ptr<rank>> m_ranks;
};

}  // namespace copy_engine_test
