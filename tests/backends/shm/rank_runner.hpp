// Runs ranks for tests as threads, forked processes or both, with a backend context in shared memory.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace shm_test {

// Two blocks of symmetric heap per rank, mapped before any rank starts.
inline constexpr int heap_blocks = 2;
inline constexpr std::uint64_t heap_block_bytes = 4 << 20;

struct run_setup {
  int ranks = 4;
  int processes = 1;  // rank r runs in process r % processes; process 0 is the test itself
  double timeout_s = 60;
  std::map<std::string, std::string> options;
  std::vector<int> node_of;                  // empty: one machine
  const isthmus_backend* backend = nullptr;  // null: the shm backend
  bool has_mpi_bootstrap = false;  // the context has a table of MPI functions, which must not be called
};

struct shared_area;

// One rank: a backend context as the runtime would provide it, and the backend's state.
class rank {
 public:
  rank(shared_area& area, const run_setup& setup, int number);
  rank(const rank&) = delete;
  rank& operator=(const rank&) = delete;
  ~rank();

  int number() const { return m_context.rank; }
  int size() const { return m_context.size; }
  const isthmus_backend_context& context() const { return m_context; }

  isthmus_status create();
  void destroy();
  isthmus_status run(const isthmus_operation& operation, const char* algorithm = nullptr);
  isthmus_status run(const std::vector<isthmus_operation>& batch);
  const char* unsupported_reason(const isthmus_operation& operation, const char* algorithm) const;
  void abort();
  void pretend_aborted() { m_aborted = true; }
  // A barrier that does not use the backend.
  void barrier();
  std::byte* heap(int block) const;

  // The backend's last report through context->fail.
  isthmus_status failure_status() const { return m_failure_status; }
  const std::string& failure() const { return m_failure; }
  // The rank that the backend's latest long wait is blocked on; -1: none.
  int awaited_rank() const { return m_awaited_rank; }

 private:
  const isthmus_backend& functions() const;
  static isthmus_status allgather(void* runtime, const void* own_data, void* all, std::size_t bytes);
  static const char* option(void* runtime, const char* key);
  static isthmus_status fail(void* runtime, isthmus_status status, std::int64_t native_code,
                             const char* location, const char* hint, const char* format, ...);
  static isthmus_status fail_with_ranks(void* runtime, const int* ranks, std::size_t n, isthmus_status status,
                                        std::int64_t native_code, const char* location, const char* hint,
                                        const char* format, ...);
  void store_failure(isthmus_status status, const char* format, va_list arguments);
  static void log(void* runtime, int level, const char* format, ...);
  static void set_awaited_rank(void* runtime, int rank);
  static int is_aborted(void* runtime);
  static int heap_find(void* runtime, const void* pointer, std::uint64_t bytes, isthmus_heap_block* block,
                       std::uint64_t* offset);

  shared_area& m_area;
  const run_setup& m_setup;
  isthmus_backend_context m_context{};
  std::vector<int> m_node_of, m_process_of;
  std::vector<std::int64_t> m_pid_of;
  std::vector<void*> m_peers[heap_blocks];
  void* m_state = nullptr;
  std::atomic<bool> m_aborted{false};
  std::atomic<int> m_awaited_rank{-1};
  isthmus_status m_failure_status = ISTHMUS_SUCCESS;
  std::string m_failure;
};

// Throws an exception with `text` unless `condition` is true. This ends the rank and is reported by run_ranks.
void check(bool condition, const std::string& text);

// Runs `body` once per rank. Returns all failures: exceptions, and processes that exited
// abnormally except `may_die`.
std::vector<std::string> run_ranks(const run_setup& setup, const std::function<void(rank&)>& body,
                                   int may_die = -1);

// Runs run_ranks with a backend that is created before `body` and destroyed afterwards.
std::vector<std::string> run_backend(const run_setup& setup, const std::function<void(rank&)>& body);

}  // namespace shm_test
