// The ranks that this process runs: all of them, a thread each, or one of several processes.
//
//   program [--ranks N]                        N ranks here (default 3)
//   program --rank R --size N --id FILE        one rank, the form of scripts/each_rank
//   ... --platform hip                         on the stand-ins: communicators of HIP
#pragma once

#include <isthmus/fused.h>
#include <isthmus/memory.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fused_test {

struct member {
  int rank = 0, size = 1;
  isthmus_communicator communicator = nullptr;
  void* stream = nullptr;
};

class world {
 public:
  static void start(int argc, char** argv);
  static world& get();
  static void stop();

  int size() const { return m_size; }
  bool in_one_process() const { return m_members.size() == static_cast<std::size_t>(m_size); }
  // Runs `work` for every rank of this process, in threads of their own with the rank's device current. An
  // exception becomes a failure that names the rank.
  void each(const std::function<void(member&)>& work);

 private:
  int m_size = 0;
  std::vector<member> m_members;
};

// Another one at every call, the same on all ranks that ask equally often from one thread.
std::uint64_t next_seed();

// The calling thread's latest failure.
isthmus_error_info last_error();
std::string last_error_text();

}  // namespace fused_test
