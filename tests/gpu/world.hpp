// The ranks that this process runs in a GPU test: all of them, a thread each, or one of several processes.
//
//   gpu_test [--ranks N]                        all ranks here (default: one for each GPU)
//   gpu_test --rank R --size N --id FILE        one rank; rank 0 writes FILE, the others wait for it
#pragma once

#include <isthmus/isthmus.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device.hpp"

namespace gpu {

struct member {
  int rank;
  int device;
  isthmus_communicator communicator = nullptr;
  std::unique_ptr<stream> queue;
};

class world {
 public:
  // Made once, from the command line; throws with a sentence when it can't be.
  static void start(int argc, char** argv);
  static world& get();
  static void stop();

  int size() const { return m_size; }
  bool in_one_process() const { return m_members.size() == static_cast<std::size_t>(m_size); }
  std::vector<member>& members() { return m_members; }
  // Runs `work` for every rank of this process, in threads of their own with the rank's device current.
  // An exception of one becomes a test failure that names the rank.
  void each(const std::function<void(member&)>& work);

 private:
  void create_here(int ranks);
  void create_one(int rank, int size, const std::string& id_file);

  int m_size = 0;
  std::vector<member> m_members;
};

// The text of the calling thread's last error, for messages.
std::string last_error();

}  // namespace gpu
