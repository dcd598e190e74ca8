// Runs a backend plug-in without the core: each rank is a thread with a context of its own, as the runtime
// would give it. Set-up exchanges go through a barrier; failures and log lines are kept for the test.
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

// The plug-in's table, loaded from the build's plug-in folder. Throws when it is missing.
const isthmus_backend& plugin(const std::string& name);
// A function of a stand-in library, by name.
void* standin(const std::string& library, const char* name);
std::string standin_path(const std::string& library);

struct failure {
  isthmus_status status = ISTHMUS_SUCCESS;
  std::int64_t native_code = 0;
  std::string location, hint, message;
};

class rank_group;

// What one rank sees.
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
  std::vector<void*> parts;                    // what each rank's context holds from a split; empty: NULL
};

// Creates the backend on every rank, and destroys it. Options default to the stand-ins.
class rank_group {
 public:
  explicit rank_group(settings requested);
  ~rank_group();

  // Runs `work(rank)` for every rank in threads of their own.
  void each(const std::function<void(rank&)>& work);
  rank& at(int index) { return *m_ranks[static_cast<std::size_t>(index)]; }
  int size() const { return m_settings.size; }
  const isthmus_backend& backend() const { return m_backend; }
  void synchronize(rank& target);
  void abort();  // as the runtime does: marks the communicator, then tells every backend
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
