// The ranks of the device suite: one per GPU, or one per sub-device of the CPU if there is no GPU.
//
//   program [--gpu]                                  all ranks in this process, in threads
//   program [--gpu] --rank R --size N --id FILE      one of several processes, as scripts/each_rank starts them
//
// --gpu: never use the CPU. Processes share a GPU if each_rank requests it (--share-device) and the option
// share_device of the backends allows it.
#pragma once

#include <barrier>
#include <cstdlib>
#include <isthmus/sycl.hpp>
#include <isthmus/sycl/fused.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sycl/fixture.hpp"
#include "topology/rank_arguments.hpp"
#include "topology/test_threads.hpp"

namespace sycl_device_test {

struct test_rank {
  isthmus::communicator ranks;
  sycl::queue queue;                   // in-order
  std::vector<sycl::queue> unordered;  // two out-of-order queues, and one in another context
  int rank = ranks.rank();
};

class rank_team {
 public:
  // Returns false if --gpu is set and there is no GPU.
  static bool make(int argc, char** argv);
  static rank_team& get() { return *instance(); }
  static void end() { instance().reset(); }

  bool is_on_host() const { return m_members.front().ranks.platform() == ISTHMUS_PLATFORM_HOST; }
  bool is_in_one_process() const { return m_is_in_one_process; }
  // Returns true if processes may share a GPU.
  static bool may_share_device() {
    const char* const options = std::getenv("ISTHMUS_OPTION");
    return options != nullptr && std::string_view(options).find("share_device") != std::string_view::npos;
  }
  int size() const { return m_members.front().ranks.size(); }
  std::vector<test_rank>& members() { return m_members; }
  // Waits until all ranks of this process have called it. Kernels of the tests that wait for the host must run
  // between two of these calls, because allocating or freeing host memory can wait for the kernels of all devices.
  void wait_for_local_ranks() { m_barrier->arrive_and_wait(); }
  // Runs `work(test_rank&)` for each rank of this process in its own thread.
  template <typename Work>
  void for_each_rank(Work&& work) {
    topology::run_on_each_member(m_members, work);
  }

 private:
  static std::optional<rank_team>& instance() {
    static std::optional<rank_team> team;
    return team;
  }
  std::vector<test_rank> m_members;
  std::unique_ptr<std::barrier<>> m_barrier;
  bool m_is_in_one_process = true;
};

// The rank's out-of-order queues. All tests use the same ones: queues create their streams when commands are
// submitted, and a process with many streams waits for running kernels before it creates another (CUDA 13).
inline sycl::queue unordered_queue(const test_rank& self) { return self.unordered[0]; }
inline sycl::queue second_unordered_queue(const test_rank& self) { return self.unordered[1]; }
inline sycl::queue other_context_queue(const test_rank& self) { return self.unordered[2]; }

// USM of one kind that the object owns.
template <typename T>
class block {
 public:
  block(std::size_t count, const sycl::queue& queue, sycl::usm::alloc kind = sycl::usm::alloc::device)
      : m_queue(queue), m_data(sycl::malloc<T>(count > 0 ? count : 1, queue, kind)) {}
  ~block() { sycl::free(m_data, m_queue); }
  block(const block&) = delete;
  block& operator=(const block&) = delete;
  T* data() const { return m_data; }

 private:
  sycl::queue m_queue;
  T* m_data;
};

}  // namespace sycl_device_test
