// Several ranks in one process, each with its own stand-in device, and a symmetric heap.
#pragma once

#include <isthmus/backend.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/copy_engine/copy_engine_state.hpp"
#include "conformance/test_case.hpp"
#include "standin_driver.hpp"

namespace copy_engine_test {

struct test_setup {
  int ranks = 2;
  isthmus::copy_engine::settings options{1 << 16, 4096, 1};
  driver_behavior behavior;
  double timeout_s = 60;
  std::uint64_t heap_bytes = 1 << 20;
};

class topology;

class rank_runner {
 public:
  rank_runner(topology& owner, int number);
  int number() const { return m_number; }
  standin_driver& driver() { return *m_driver; }
  standin_compiler& compiler() { return m_compiler; }
  isthmus::copy_engine::copy_engine_state& state() { return *m_state; }
  isthmus::native_stream stream() const { return m_stream; }
  // This rank's part of the symmetric heap.
  std::span<std::byte> heap();
  // The backend's most recent error.
  isthmus_status status = ISTHMUS_SUCCESS;
  std::string message, hint;
  std::vector<std::string> logged;
  std::atomic<int> aborted{0};

  // Enqueues the operation and waits for the stream. Returns the status of enqueue.
  isthmus_status run(const isthmus_operation& operation, const char* algorithm);
  isthmus_status enqueue(isthmus_operation operation, const char* algorithm);
  // Runs one conformance test case and checks it byte by byte. Returns the error, if any.
  std::optional<std::string> run_case(const conformance::test_case& test, const char* algorithm);
  void destroy_state() { m_state.reset(); }
  const isthmus::signal_block_address& signals() const { return m_signals.address(); }
  // Opens the memory that the ranks share.
  void open(std::span<const isthmus::signal_block_address> signals);

 private:
  friend class topology;
  isthmus_backend_context m_context{};
  topology& m_topology;
  int m_number;
  std::vector<std::byte> m_plain;
  std::mutex m_mutex;
  std::unique_ptr<standin_driver> m_driver;
  standin_compiler m_compiler;
  isthmus::native_stream m_stream;
  isthmus::signal_memory m_signals;
  std::unique_ptr<isthmus::copy_engine::copy_engine_state> m_state;
};

class topology {
 public:
  explicit topology(const test_setup& setup);
  ~topology();
  rank_runner& at(int number) { return *m_ranks[static_cast<std::size_t>(number)]; }
  int size() const { return m_setup.ranks; }
  // Runs `work` on every rank concurrently, each in its own thread.
  void for_each_rank(const std::function<void(rank_runner&)>& work);

 private:
  friend class rank_runner;
  test_setup m_setup;
  std::vector<int> m_zeros;
  std::vector<std::vector<std::byte>> m_heap, m_shared;  // by rank: the user block and the backend's block
  std::vector<void*> m_heap_peers, m_shared_peers;
  std::vector<std::unique_ptr<rank_runner>> m_ranks;
};

}  // namespace copy_engine_test
