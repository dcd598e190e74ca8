// What ids cost a process: one thread for all stores, nothing after their end, no spinning without descriptors.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmath>
#include <filesystem>

#include "base/log.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/support.hpp"
#include "bootstrap/tcp_store.hpp"
#include "bootstrap/unique_id.hpp"

namespace {
bool is_forked = false;
}

// What only the parent's threads point to looks leaked in a child, which has none of them: LeakSanitizer asks
// here.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return is_forked ? 1 : 0; }

namespace {

using namespace isthmus;

#ifdef __SANITIZE_THREAD__
constexpr bool can_fork = false;  // ThreadSanitizer follows no fork of a process with several threads
#else
constexpr bool can_fork = true;
#endif

// As ::fork, but a sanitizer knows the child for one.
pid_t fork_child() {
  const pid_t child = fork();
  is_forked = child == 0;
  return child;
}

std::size_t entries_of(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}
std::size_t threads() { return entries_of("/proc/self/task"); }
std::size_t descriptors() { return entries_of("/proc/self/fd"); }

// True as soon as `condition` holds, false when it does not within a generous time.
template <typename Condition>
bool eventually(Condition&& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

TEST(store_service, unused_ids_share_a_thread_and_end) {
  std::thread([] {}).join();  // a sanitizer starts a thread of its own with the first
  const std::size_t threads_before = threads(), descriptors_before = descriptors();
  for (int i = 0; i < 50; ++i) start_tcp_store(nullptr, {.idle_timeout_s = 0.5});
  EXPECT_LE(threads(), threads_before + 1);
  EXPECT_TRUE(eventually([&] { return descriptors() == descriptors_before; })) << descriptors();
  EXPECT_TRUE(eventually([&] { return threads() <= threads_before; })) << threads();
  // The service starts anew with the next id.
  const auto rank = connect_tcp_store(parse_unique_id(start_tcp_store(nullptr)), 0, 1, 5);
  rank->set("a", test::bytes("b"));
  EXPECT_EQ(test::get(*rank, "a", 1, 5), "b");
}

TEST(store_service, a_rank_keeps_its_store) {
  const auto rank = connect_tcp_store(parse_unique_id(start_tcp_store(nullptr, {.idle_timeout_s = 0.1})), 0, 2, 5);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  rank->set("a", test::bytes("b"));
  EXPECT_EQ(test::get(*rank, "a", 1, 5), "b");
}

// In a process of its own, which has no descriptor left while a rank of another process dials. The seconds are
// of processor time: spinning burns one per second of waiting, polling ten times a second next to nothing.
int wait_without_descriptors(const store_address& store_location, int write_end, int read_end) {
  const auto rank = connect_tcp_store(store_location, 0, 2, 5);
  // UBSan takes a pipe to look at an object whose type it has not seen yet: the log's have to be known to it.
  log(log_level::warning, "this process now takes all its descriptors");
  std::vector<descriptor> fillers;
  while (true) {
    const int filler = fcntl(write_end, F_DUPFD_CLOEXEC, 0);
    if (filler < 0) break;
    fillers.emplace_back(filler);
  }
  char byte = 0;
  if (write(write_end, &byte, 1) != 1) return 2;
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  getrusage(RUSAGE_SELF, &after);
  fillers.clear();
  if (read(read_end, &byte, 1) != 1) return 3;  // the other rank is in
  const auto seconds = [](const rusage& use) {
    return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
  };
  return seconds(after) - seconds(before) < 0.3 ? 0 : 4;
}

TEST(store_service, out_of_descriptors_it_waits_instead_of_spinning) {
  if (!can_fork) GTEST_SKIP() << "ThreadSanitizer";
  int to_parent[2], to_child[2], address[2];
  ASSERT_EQ(pipe(to_parent) + pipe(to_child) + pipe(address), 0);
  const pid_t child = fork_child();
  if (child == 0) {
    const rlimit limit{64, 64};
    setrlimit(RLIMIT_NOFILE, &limit);
    const auto id = start_tcp_store(nullptr);
    if (write(address[1], &id, sizeof id) != sizeof id) _exit(5);
    _exit(wait_without_descriptors(parse_unique_id(id), to_parent[1], to_child[0]));
  }
  isthmus_unique_id id;
  ASSERT_EQ(read(address[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
  char byte = 0;
  ASSERT_EQ(read(to_parent[0], &byte, 1), 1);
  const auto rank = connect_tcp_store(parse_unique_id(id), 1, 2, 20);  // gets in once descriptors are back
  ASSERT_EQ(write(to_child[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "4: it spun";
  for (const int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1], address[0], address[1]}) close(fd);
}

// A forked child that exits takes nothing of its parent's store with it, and may have stores of its own.
TEST(store_service, a_forked_child_leaves_its_parents_stores_alone) {
  if (!can_fork) GTEST_SKIP() << "ThreadSanitizer";
  const auto store_location = parse_unique_id(start_tcp_store(nullptr));
  const auto first = connect_tcp_store(store_location, 0, 2, 5);
  const pid_t child = fork_child();
  if (child == 0) {
    auto own = connect_tcp_store(parse_unique_id(start_tcp_store(nullptr)), 0, 1, 5);
    own->set("a", test::bytes("b"));
    const bool right = test::get(*own, "a", 1, 5) == "b";
    own.reset();
    std::exit(right ? 0 : 1);  // with static destructors
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const auto second = connect_tcp_store(store_location, 1, 2, 5);
  first->set("a", test::bytes("b"));
  EXPECT_EQ(test::get(*second, "a", 1, 5), "b");
}

}  // namespace
