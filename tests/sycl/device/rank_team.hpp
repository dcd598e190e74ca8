// The ranks of the suite for devices: one for each GPU, or for each sub-device of the CPU where there is no
// GPU.
//
//   program [--gpu]                                  all ranks in this process, in threads
//   program [--gpu] --rank R --size N --id FILE      one of several processes, the form of scripts/each_rank
//
// --gpu: never the CPU. Processes share a GPU where each_rank says so (--share-device) and the option
// share_device of the backends allows it.
#pragma once

#include <cstdlib>
#include <isthmus/sycl.hpp>
#include <isthmus/sycl/fused.hpp>
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
  std::vector<sycl::queue> unordered;  // two without an order of their own, and one in another context
  int rank = ranks.rank();
};

class rank_team {
 public:
  // False where --gpu was given and there is none.
  static bool make(int argc, char** argv);
  static rank_team& get() { return *instance(); }
  static void end() { instance().reset(); }

  bool is_on_host() const { return m_members.front().ranks.platform() == ISTHMUS_PLATFORM_HOST; }
  bool is_in_one_process() const { return m_is_in_one_process; }
  // Where processes may share a GPU.
  static bool may_share_device() {
    const char* const options = std::getenv("ISTHMUS_OPTION");
    return options != nullptr && std::string_view(options).find("share_device") != std::string_view::npos;
  }
  int size() const { return m_members.front().ranks.size(); }
  std::vector<test_rank>& members() { return m_members; }
  // Runs `work(member&)` for each rank of this process in a thread of its own.
  template <typename Work>
  void each(Work&& work) {
    topology::run_on_each_member(m_members, work);
  }

 private:
  static std::optional<rank_team>& instance() {
    static std::optional<rank_team> one;
    return one;
  }
  std::vector<test_rank> m_members;
  bool m_is_in_one_process = true;
};

// The rank's queues without an order of their own. All tests have the same ones: queues make their streams when
// commands come, and a process with many streams waits for running kernels to make another (CUDA 13).
inline sycl::queue unordered_queue(const test_rank& self) { return self.unordered[0]; }
inline sycl::queue second_unordered_queue(const test_rank& self) { return self.unordered[1]; }
inline sycl::queue other_context_queue(const test_rank& self) { return self.unordered[2]; }

// Memory of one USM kind, freed by its owner.
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
