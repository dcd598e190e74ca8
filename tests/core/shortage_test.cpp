// Creation when one rank lacks descriptors, memory or /proc: all ranks fail soon, with its reason and its number.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/support.hpp"
#include "topology/topology.hpp"

namespace {

using testing::HasSubstr;

constexpr int rank_count = 3;
constexpr double timeout_s = 60;

struct shortage_outcome {
  isthmus_status status;
  isthmus_error_info error;
  double seconds;
  std::size_t failed_ranks;  // their number
  int failed_rank;           // the first one
};

// Creates a communicator of three processes. `restrict` takes something from the faulty rank before.
std::vector<shortage_outcome> create(int faulty_rank, const std::function<void()>& restrict) {
  topology::rendezvous& rendezvous_point = topology::rendezvous::create(rank_count);
  auto* const outcomes =
      reinterpret_cast<shortage_outcome*>(topology::map_shared(rank_count * sizeof(shortage_outcome)));
  topology::child_processes processes;
  for (int rank = 0; rank < rank_count; ++rank)
    processes.start(rank, [&, rank] {
      const isthmus_unique_id id = rendezvous_point.new_unique_id(rank);
      test::scoped_file file(test::host_config);
      const auto options = test::options_for(file, timeout_s);
      shortage_outcome& own = outcomes[rank];
      if (rank == faulty_rank) restrict();
      rendezvous_point.wait();  // no rank creates connections before the restriction
      const auto begin = std::chrono::steady_clock::now();
      isthmus_communicator communicator = nullptr;
      own.status = isthmus_communicator_create(&id, rank, rank_count, &options, &communicator);
      own.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      own.error = test::last_error();
      own.failed_ranks = isthmus_last_error_ranks(&own.failed_rank, 1);
      rendezvous_point.wait();
      isthmus_communicator_destroy(communicator);
      return 0;
    });
  processes.join();
  return {outcomes, outcomes + rank_count};
}

// Returns whether all ranks succeeded. Otherwise all of them must have the reason.
bool expect_reason(const std::vector<shortage_outcome>& outcomes, int faulty_rank, const std::string& reason) {
  if (std::ranges::all_of(outcomes, [](const auto& each) { return each.status == ISTHMUS_SUCCESS; }))
    return true;
  for (const shortage_outcome& each : outcomes) {
    EXPECT_NE(each.status, ISTHMUS_SUCCESS);
    EXPECT_THAT(each.error.message, HasSubstr(reason));
    EXPECT_EQ(each.failed_ranks, 1U) << each.error.message;
    EXPECT_EQ(each.failed_rank, faulty_rank) << each.error.message;
    EXPECT_LT(each.seconds, timeout_s / 3) << each.error.message;
  }
  return false;
}

// Sanitizers need descriptors and address space themselves. Without a descriptor, UBSan reports valid objects.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Leaves `n` free descriptors.
void use_up_descriptors(int n) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 64;
  setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<int> fillers;
  for (int fd = dup(STDIN_FILENO); fd >= 0; fd = dup(STDIN_FILENO)) fillers.push_back(fd);
  for (; n > 0; --n) {
    close(fillers.back());
    fillers.pop_back();
  }
}

TEST(shortage, of_descriptors_is_the_reason_on_all_ranks) {
  for (const int faulty_rank : {0, 1, 2})  // rank 0 serves the store
    for (int free_descriptors = 0; free_descriptors < 8; ++free_descriptors) {
      SCOPED_TRACE(free_descriptors);
      const auto outcomes = create(faulty_rank, [&] { use_up_descriptors(free_descriptors); });
      const bool has_succeeded = expect_reason(outcomes, faulty_rank, std::strerror(EMFILE));
      if (free_descriptors < 2) {
        EXPECT_FALSE(has_succeeded);
      }
      if (has_succeeded) break;
    }
}

void limit_memory(rlim_t free_bytes) {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  const rlimit limit{pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + free_bytes, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
}

TEST(shortage, of_memory_is_the_reason_on_all_ranks) {
  for (const rlim_t free_bytes : {rlim_t{128} << 10, rlim_t{1} << 20, rlim_t{4} << 20, rlim_t{12} << 20}) {
    SCOPED_TRACE(free_bytes);
    expect_reason(create(1, [&] { limit_memory(free_bytes); }), 1, "emory");
  }
}
#endif

TEST(shortage, of_proc_is_the_reason_on_all_ranks) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can replace /proc";
  const auto hide_proc = [] {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/proc", "tmpfs", 0, nullptr) != 0)
      std::abort();  // then the other ranks are killed
  };
  EXPECT_FALSE(expect_reason(create(1, hide_proc), 1, "cannot read /proc/self/stat"));
}

}  // namespace
