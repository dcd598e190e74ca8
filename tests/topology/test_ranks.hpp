// The ranks of a test program that uses the C API: all ranks in threads of this process, or one
// rank per process.
//
//   program [--ranks N]                        all ranks in this process
//   program --rank R --size N --id FILE        one rank, as started by scripts/each_rank
#pragma once

#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "topology/rank_arguments.hpp"
#include "topology/test_threads.hpp"

namespace topology {

struct test_rank {
  int rank = 0, size = 1;
  int device = 0;  // device ordinal
  isthmus_communicator communicator = nullptr;
};

// The most recent failure of the calling thread as "message [backend code; hint]".
inline std::string last_error_text() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return std::string(info.message) + " [" + info.backend + " " + std::to_string(info.native_code) + "; " +
         info.hint + "]";
}

// Creates the ranks of this process as specified by the command line; the default is `ranks` ranks. On device
// platforms, rank r uses device r.
inline std::vector<test_rank> create_members(int argc, char** argv, isthmus_platform platform, int ranks) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = 60;
  const auto is_host = platform == ISTHMUS_PLATFORM_HOST;
  const auto device_of = [&](int rank) { return is_host ? 0 : rank; };
  if (const auto process = parse_rank_arguments(argc, argv)) {
    test_rank own{process->rank, process->size, is_host ? 0 : process->device};
    options.device = {platform, own.device};
    const isthmus_unique_id id = share_unique_id(own.rank, process->id_file);
    if (isthmus_communicator_create(&id, own.rank, own.size, &options, &own.communicator) != ISTHMUS_SUCCESS)
      throw std::runtime_error("create: " + last_error_text());
    return {own};
  }
  if (const char* const rank_count = find_argument(argc, argv, "--ranks")) ranks = std::atoi(rank_count);
  std::vector<isthmus_device> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back({platform, device_of(rank)});
  std::vector<isthmus_communicator> communicators(devices.size());
  if (isthmus_communicator_create_all(ranks, devices.data(), &options, communicators.data()) != ISTHMUS_SUCCESS)
    throw std::runtime_error("create_all: " + last_error_text());
  std::vector<test_rank> members;
  for (int rank = 0; rank < ranks; ++rank)
    members.push_back({rank, ranks, device_of(rank), communicators[static_cast<std::size_t>(rank)]});
  return members;
}

// The ranks of this process. Member derives from test_rank and can add state of the suite. enter() makes its
// device current in a thread; leave() releases the added state.
template <typename Member>
class test_ranks {
 public:
  explicit test_ranks(const std::vector<test_rank>& ranks) : m_size(ranks.front().size) {
    for (const test_rank& each : ranks) m_members.emplace_back(each);
  }
  ~test_ranks() {
    for_each_rank([](Member& self) {
      self.leave();
      EXPECT_EQ(isthmus_communicator_destroy(self.communicator), ISTHMUS_SUCCESS) << last_error_text();
    });
  }
  test_ranks(const test_ranks&) = delete;
  test_ranks& operator=(const test_ranks&) = delete;

  // The only instance of the program, valid while its tests run.
  static test_ranks& get() { return *instance(); }
  // Creates the instance, runs all tests and destroys the instance. Returns the exit status of main.
  static int run_all_tests(int argc, char** argv, isthmus_platform platform, int ranks) {
    try {
      instance() = std::make_unique<test_ranks>(create_members(argc, argv, platform, ranks));
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "cannot start: %s\n", failure.what());
      return 1;
    }
    const int result = RUN_ALL_TESTS();
    instance().reset();
    return result != 0 || ::testing::Test::HasFailure() ? 1 : 0;
  }

  int size() const { return m_size; }
  bool is_single_process() const { return m_members.size() == static_cast<std::size_t>(m_size); }
  std::vector<Member>& members() { return m_members; }
  // Runs `work` for every rank of this process, each in its own thread with the device of the rank current. An
  // exception becomes a test failure that names the rank.
  void for_each_rank(const std::function<void(Member&)>& work) {
    run_on_each_member(m_members, [&work](Member& self) {
      self.enter();
      work(self);
    });
  }

 private:
  static std::unique_ptr<test_ranks>& instance() {
    static std::unique_ptr<test_ranks> process;
    return process;
  }

  int m_size;
  std::vector<Member> m_members;
};

}  // namespace topology
