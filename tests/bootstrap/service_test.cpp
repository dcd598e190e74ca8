// Resources of the store service: one thread for all stores, none after they have closed, no busy polling.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "base/log.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/support.hpp"
#include "bootstrap/tcp_store.hpp"

namespace {
bool is_forked = false;
}

// LeakSanitizer calls this. A forked child has none of the parent's threads, so memory that only their stacks
// point to looks leaked.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return is_forked ? 1 : 0; }

namespace {

using namespace isthmus;

#ifdef __SANITIZE_THREAD__
constexpr bool can_fork = false;  // ThreadSanitizer does not support forks of multi-threaded processes
#else
constexpr bool can_fork = true;
#endif

// Like ::fork, but records for LeakSanitizer that this is the child.
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

// True as soon as `condition` holds; false if it does not hold within 10 s.
template <typename Condition>
bool becomes_true(Condition&& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

TEST(store_service, unused_ids_share_one_thread_and_expire) {
  std::thread([] {}).join();  // a sanitizer starts its own thread together with the first one
  const std::size_t threads_before = threads(), descriptors_before = descriptors();
  for (int i = 0; i < 50; ++i) start_tcp_store(nullptr, {.idle_timeout_s = 0.5});
  EXPECT_LE(threads(), threads_before + 1);
  EXPECT_TRUE(becomes_true([&] { return descriptors() == descriptors_before; })) << descriptors();
  EXPECT_TRUE(becomes_true([&] { return threads() <= threads_before; })) << threads();
  // The service starts again with the next id.
  const auto rank = connect_tcp_store(parse_unique_id(start_tcp_store(nullptr)), 0, 1, 5);
  rank->set("a", test::bytes("b"));
  EXPECT_EQ(test::get(*rank, "a", 1, 5), "b");
}

// Rank 1 never joins.
TEST(store_service, stores_of_failed_creations_are_limited) {
  if (!can_fork) GTEST_SKIP() << "the thread of the store keeps running, and later tests fork";
  const store_address unused = parse_unique_id(start_tcp_store(nullptr));
  const std::size_t descriptors_before = descriptors();
  for (int i = 0; i < 100; ++i) {
    const auto store = connect_tcp_store(parse_unique_id(start_tcp_store(nullptr)), 0, 2, 5);
    const auto rank = make_store_bootstrap(store, "isthmus", 0, 2, 0.001);
    std::vector<std::byte> all(2);
    EXPECT_EQ(test::error_of([&] { rank->allgather(std::array{std::byte{1}}, all); }).status,
              ISTHMUS_ERROR_TIMEOUT);
  }
  EXPECT_TRUE(becomes_true([&] { return descriptors() <= descriptors_before + 20; })) << descriptors();
  EXPECT_NO_THROW(connect_tcp_store(unused, 0, 1, 5)) << "no rank has used this store yet";
}

TEST(store_service, connected_rank_keeps_its_store_alive) {
  const auto rank =
      connect_tcp_store(parse_unique_id(start_tcp_store(nullptr, {.idle_timeout_s = 0.1})), 0, 2, 5);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  rank->set("a", test::bytes("b"));
  EXPECT_EQ(test::get(*rank, "a", 1, 5), "b");
}

// Runs in its own process, which has no free descriptor until a rank of another process has joined. Measures CPU
// time: busy polling would use one second per second, polling ten times a second almost none.
int wait_without_descriptors(const store_address& store_location, int write_end, int read_end) {
  const auto rank = connect_tcp_store(store_location, 0, 2, 5);
  // UBSan needs a pipe to inspect an object of a new type, so use the log once while descriptors are available.
  log(log_level::warning, "this process now opens all its descriptors");
  std::vector<file_descriptor> fillers;
  while (true) {
    const int filler = fcntl(write_end, F_DUPFD_CLOEXEC, 0);
    if (filler < 0) break;
    fillers.emplace_back(filler);
  }
  char byte = 0;
  if (write(write_end, &byte, 1) != 1) return 2;
  rusage usage_before{}, usage_after{};
  getrusage(RUSAGE_SELF, &usage_before);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  getrusage(RUSAGE_SELF, &usage_after);
  if (read(read_end, &byte, 1) != 1) return 3;  // the other rank has joined
  fillers.clear();
  rank->set("late", test::bytes("x"));
  const auto other_store = connect_tcp_store(parse_unique_id(start_tcp_store(nullptr)), 0, 1, 5);
  other_store->set("a", test::bytes("b"));
  if (test::get(*other_store, "a", 1, 5) != "b") return 6;
  if (read(read_end, &byte, 1) != 1) return 7;  // the other rank has read the key, so the store may end
  const auto seconds = [](const rusage& use) {
    return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
  };
  return seconds(usage_after) - seconds(usage_before) < 0.3 ? 0 : 4;
}

TEST(store_service, ranks_join_a_process_without_descriptors) {
  if (!can_fork) GTEST_SKIP() << "ThreadSanitizer";
  int to_parent[2], to_child[2], address[2];
  ASSERT_EQ(pipe(to_parent) + pipe(to_child) + pipe(address), 0);
  const pid_t child = fork_child();
  if (child == 0) {
    const rlimit limit{64, 64};
    setrlimit(RLIMIT_NOFILE, &limit);
    alarm(100);  // if the other rank fails
    const auto id = start_tcp_store(nullptr);
    if (write(address[1], &id, sizeof id) != sizeof id) _exit(5);
    _exit(wait_without_descriptors(parse_unique_id(id), to_parent[1], to_child[0]));
  }
  isthmus_unique_id id;
  ASSERT_EQ(read(address[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
  char byte = 0;
  ASSERT_EQ(read(to_parent[0], &byte, 1), 1);
  const auto rank = connect_tcp_store(parse_unique_id(id), 1, 2, 20);
  ASSERT_EQ(write(to_child[1], &byte, 1), 1);
  EXPECT_EQ(test::get(*rank, "late", 1, 20), "x");
  ASSERT_EQ(write(to_child[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "4: busy polling; 6: the next store does not work";
  for (const int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1], address[0], address[1]}) close(fd);
}

// A process that exits serves its store until the ranks of other processes have left.
TEST(store_service, exiting_process_serves_connected_ranks) {
  if (!can_fork) GTEST_SKIP() << "ThreadSanitizer";
  int to_parent[2], to_child[2];
  ASSERT_EQ(pipe(to_parent) + pipe(to_child), 0);
  const pid_t child = fork_child();
  if (child == 0) {
    const auto id = start_tcp_store(nullptr);
    char byte = 0;
    if (write(to_parent[1], &id, sizeof id) != sizeof id || read(to_child[0], &byte, 1) != 1) _exit(5);
    std::exit(0);  // with static destructors
  }
  isthmus_unique_id id;
  ASSERT_EQ(read(to_parent[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
  auto rank = connect_tcp_store(parse_unique_id(id), 1, 2, 20);
  char byte = 0;
  ASSERT_EQ(write(to_child[1], &byte, 1), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  rank->set("a", test::bytes("b"));
  EXPECT_EQ(test::get(*rank, "a", 1, 5), "b");
  rank.reset();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (const int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1]}) close(fd);
}

// A forked child can have its own stores, and its exit does not affect its parent's stores.
TEST(store_service, forked_child_does_not_affect_parent) {
  if (!can_fork) GTEST_SKIP() << "ThreadSanitizer";
  const auto store_location = parse_unique_id(start_tcp_store(nullptr));
  const auto first = connect_tcp_store(store_location, 0, 2, 5);
  const pid_t child = fork_child();
  if (child == 0) {
    auto own = connect_tcp_store(parse_unique_id(start_tcp_store(nullptr)), 0, 1, 5);
    own->set("a", test::bytes("b"));
    const bool is_correct = test::get(*own, "a", 1, 5) == "b";
    own.reset();
    std::exit(is_correct ? 0 : 1);  // with static destructors
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const auto second = connect_tcp_store(store_location, 1, 2, 5);
  first->set("a", test::bytes("b"));
  EXPECT_EQ(test::get(*second, "a", 1, 5), "b");
}

}  // namespace
