// Runs a backend plug-in without the core. Each rank is a thread with its own context, as the runtime would
// provide it. Setup exchanges use a barrier. Failures and log lines are recorded for the test.
#pragma once

#include <isthmus/backend.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace harness {

// The function table of a plug-in, loaded from the build tree. Throws if it is missing.
const isthmus_backend& plugin(const std::string& name);
// A function of a stand-in library, looked up by name.
void* standin(const std::string& library, const char* name);
std::string standin_path(const std::string& library);

struct failure {
  isthmus_status status = ISTHMUS_SUCCESS;
  std::int64_t native_code = 0;
  std::string location, hint, message;
};

class rank_group;

// The state of one rank.
struct rank {
  isthmus_backend_context context{};
  rank_group* owner = nullptr;
  void* state = nullptr;
  void* stream = nullptr;
  isthmus_status created = ISTHMUS_ERROR_INTERNAL;
  failure last;
  std::vector<std::string> log;
};

struct settings {
  int size = 2;
  std::string backend = "nccl";
  isthmus_platform platform = ISTHMUS_PLATFORM_CUDA;
  double timeout_s = 20;
  std::map<std::string, std::string> options;  // "library", ...
  std::vector<void*> split_states;             // result of a split for each rank's context; empty: NULL
};

// Creates the backend on every rank and destroys it. The default options select the stand-ins.
class rank_group {
 public:
  explicit rank_group(settings config);
  ~rank_group();

  // Runs `work(rank)` for every rank, each in its own thread.
  void for_each_rank(const std::function<void(rank&)>& work);
  rank& at(int index) { return *m_ranks[static_cast<std::size_t>(index)]; }
  int size() const { return m_settings.size; }
  const isthmus_backend& backend() const { return m_backend; }
  void synchronize(rank& target);
  void abort();  // like the runtime: marks the communicator as aborted, then notifies every backend
  void destroy();

 private:
  friend struct callbacks;
  settings m_settings;
  const isthmus_backend& m_backend;
  std::vector<std::unique_ptr<rank>> m_ranks;
  std::vector<int> m_zeros, m_processes;
  std::vector<std::int64_t> m_pids;
  std::atomic<bool> m_aborted{false};
  std::mutex m_mutex;
  std::vector<std::byte> m_exchanged;
  struct start_barrier;
  std::unique_ptr<start_barrier> m_start_barrier;
};

}  // namespace harness
