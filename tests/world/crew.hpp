// The ranks that a test program over the C API runs, for all of its tests: all of them, a thread each, or one
// of several processes.
//
//   program [--ranks N]                        all ranks here
//   program --rank R --size N --id FILE        one rank, the form of scripts/each_rank
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

#include "world/each_rank.hpp"
#include "world/reported.hpp"

namespace world {

struct member {
  int rank = 0, size = 1;
  int device = 0;  // its ordinal
  isthmus_communicator communicator = nullptr;
};

// "message [backend code; hint]" of the calling thread's latest failure.
inline std::string last_error_text() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return std::string(info.message) + " [" + info.backend + " " + std::to_string(info.native_code) + "; " +
         info.hint + "]";
}

// This process' members, as the command line says; `ranks` where it says nothing. On a device platform each
// rank has the device of its number.
inline std::vector<member> create_members(int argc, char** argv, isthmus_platform platform, int ranks) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = 60;
  const auto is_host = platform == ISTHMUS_PLATFORM_HOST;
  const auto device_of = [&](int rank) { return is_host ? 0 : rank; };
  if (const auto one = as_one_of_many(argc, argv)) {
    member own{one->rank, one->size, is_host ? 0 : one->device};
    options.device = {platform, own.device};
    const isthmus_unique_id id = meet_at(own.rank, one->id_file);
    if (isthmus_communicator_create(&id, own.rank, own.size, &options, &own.communicator) != ISTHMUS_SUCCESS)
      throw std::runtime_error("create: " + last_error_text());
    return {own};
  }
  if (const char* const given = argument(argc, argv, "--ranks")) ranks = std::atoi(given);
  std::vector<isthmus_device> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back({platform, device_of(rank)});
  std::vector<isthmus_communicator> made(devices.size());
  if (isthmus_communicator_create_all(ranks, devices.data(), &options, made.data()) != ISTHMUS_SUCCESS)
    throw std::runtime_error("create_all: " + last_error_text());
  std::vector<member> members;
  for (int rank = 0; rank < ranks; ++rank)
    members.push_back({rank, ranks, device_of(rank), made[static_cast<std::size_t>(rank)]});
  return members;
}

// Member is a `member`, made from one, with what the suite adds; `enter` makes its device current in a thread,
// `leave` ends what it added.
template <typename Member>
class crew {
 public:
  explicit crew(const std::vector<member>& made) : m_size(made.front().size) {
    for (const member& each : made) m_members.emplace_back(each);
  }
  ~crew() {
    each([](Member& self) {
      self.leave();
      EXPECT_EQ(isthmus_communicator_destroy(self.communicator), ISTHMUS_SUCCESS) << last_error_text();
    });
  }
  crew(const crew&) = delete;
  crew& operator=(const crew&) = delete;

  // The program's only one, while its tests run.
  static crew& get() { return *only(); }
  // Makes it, runs all tests and ends it; what main returns.
  static int run_all_tests(int argc, char** argv, isthmus_platform platform, int ranks) {
    try {
      only() = std::make_unique<crew>(create_members(argc, argv, platform, ranks));
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "cannot start: %s\n", failure.what());
      return 1;
    }
    const int result = RUN_ALL_TESTS();
    only().reset();
    return result != 0 || ::testing::Test::HasFailure() ? 1 : 0;
  }

  int size() const { return m_size; }
  bool in_one_process() const { return m_members.size() == static_cast<std::size_t>(m_size); }
  std::vector<Member>& members() { return m_members; }
  // Runs `work` for every rank of this process, in threads of their own with the rank's device current. An
  // exception becomes a failure that names the rank.
  void each(const std::function<void(Member&)>& work) {
    on_each_member(m_members, [&work](Member& self) {
      self.enter();
      work(self);
    });
  }

 private:
  static std::unique_ptr<crew>& only() {
    static std::unique_ptr<crew> one;
    return one;
  }

  int m_size;
  std::vector<Member> m_members;
};

}  // namespace world
