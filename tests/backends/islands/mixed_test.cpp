// Ranks on devices of several platforms in one communicator, and devices on nodes of their own: every
// collective against the oracle, the same bits on all ranks, and what is refused. Devices are stand-ins, or of
// CUDA alone.
#include "mixed.hpp"

#include <nlohmann/json.hpp>
#include <sstream>

#include "conformance/issue.hpp"

namespace {

using conformance::test_case;
using islands_test::device_memory;
using islands_test::on_nodes;
using islands_test::rank;
using islands_test::with_devices;

// Of four ranks: TEST_PLATFORMS="cuda host hip level_zero".
const std::vector<isthmus_platform> mixed = [] {
  const char* const text = std::getenv("TEST_PLATFORMS");
  std::istringstream words(text == nullptr ? "cuda host hip host" : text);
  std::vector<isthmus_platform> found;
  for (std::string word; words >> word;)
    for (int i = 0; i < ISTHMUS_PLATFORM_COUNT; ++i)
      if (word == isthmus_platform_name(static_cast<isthmus_platform>(i)))
        found.push_back(static_cast<isthmus_platform>(i));
  return found;
}();

isthmus_status call(const rank& own, const test_case& test, const oracle::shape& shape,
                    isthmus_operation operation) {
  if (test.collective != ISTHMUS_SEND) return isthmus_enqueue(own.communicator, &operation);
  isthmus_operation received = operation;  // a ring
  received.collective = ISTHMUS_RECV;
  operation.root = (own.number + shape.root) % own.size;
  received.root = (own.number + own.size - shape.root) % own.size;
  operation.recv_buf = nullptr;
  received.send_buf = nullptr;
  isthmus_group_start();
  isthmus_enqueue(own.communicator, &operation);
  isthmus_enqueue(own.communicator, &received);
  return isthmus_group_end();
}

// The hash of this rank's result.
std::uint64_t play(const rank& own, isthmus_platform platform, const test_case& test) {
  const oracle::shape shape = conformance::shape_of(test, own.size);
  std::vector<std::byte> memory(conformance::rank_buffers::bytes_needed(test, shape));
  const conformance::rank_buffers buffers(test, shape, own.number, memory);
  device_memory there(platform, memory.size());
  there.put(memory.data());
  const auto moved = [&](std::byte* pointer) {
    return pointer == nullptr ? nullptr : there.at(static_cast<std::size_t>(pointer - memory.data()));
  };
  const conformance::placement at{moved(buffers.at().send), moved(buffers.at().recv)};
  EXPECT_EQ(call(own, test, shape, conformance::operation_of(test, shape, at, own.number)), ISTHMUS_SUCCESS)
      << conformance::to_string(test) << ": " << world::last_error().message;
  there.get(memory.data());
  EXPECT_EQ(buffers.find_error(true, true, false).value_or(""), "") << conformance::to_string(test);
  return buffers.hash();
}

void play_all(const rank& own, isthmus_platform platform) {
  ASSERT_EQ(own.status, ISTHMUS_SUCCESS) << own.failure.message;
  std::uint64_t seed = 1;
  std::vector<std::uint64_t> of_allreduce;
  for (const isthmus_collective collective : conformance::collectives())
    for (const isthmus_datatype datatype : {ISTHMUS_FLOAT32, ISTHMUS_BFLOAT16, ISTHMUS_INT64})
      for (const bool in_place : {false, true})
        for (const std::uint64_t count : {0, 1, 300, 5000}) {
          if (in_place && !conformance::can_be_in_place(collective)) continue;
          test_case test{collective, datatype, ISTHMUS_SUM, count, 0, in_place};
          test.op = static_cast<isthmus_reduction_op>(++seed % ISTHMUS_REDUCTION_OP_COUNT);
          test.root = static_cast<int>(seed % 4);
          test.seed = seed;
          const std::uint64_t hash = play(own, platform, test);
          if (collective == ISTHMUS_ALLREDUCE) of_allreduce.push_back(hash);
        }
  for (const auto& others : own.all.exchange(own.number, of_allreduce)) EXPECT_EQ(others, of_allreduce);
}

TEST(mixed, every_collective_is_right_and_the_same_on_all) {
  on_nodes({"a", "a", "a", "a"}, with_devices(mixed),
           [](const rank& own) { play_all(own, mixed[static_cast<std::size_t>(own.number)]); });
}

TEST(mixed, over_several_nodes) {
  on_nodes({"a", "a", "b", "b"}, with_devices(mixed),
           [](const rank& own) { play_all(own, mixed[static_cast<std::size_t>(own.number)]); });
}

TEST(devices, on_nodes_of_their_own_go_through_the_host) {
  on_nodes({"a", "b", "c", "d"}, with_devices(std::vector(4, ISTHMUS_PLATFORM_CUDA)),
           [](const rank& own) { play_all(own, ISTHMUS_PLATFORM_CUDA); });
}

TEST(mixed, explain_says_what_goes_through_the_host) {
  on_nodes({"a", "a", "a", "a"}, with_devices(mixed), [](const rank& own) {
    isthmus_operation operation{};
    operation.count = 1000;
    operation.collective = ISTHMUS_ALLREDUCE;
    operation.datatype = ISTHMUS_FLOAT32;
    const auto told =
        nlohmann::json::parse(islands_test::text_of([&](char* text, std::size_t capacity, std::size_t* needed) {
          return isthmus_communicator_explain(own.communicator, &operation, text, capacity, needed);
        }));
    EXPECT_EQ(told.at("backend"), "islands");
    EXPECT_EQ(told.at("plan").at(0).at("part"), "through the host");
    EXPECT_EQ(told.at("plan").at(0).at("backend"), "host") << told;
  });
}

std::string refusal(isthmus_status got, isthmus_status wanted) {
  EXPECT_EQ(got, wanted);
  return world::last_error().message;
}

TEST(mixed, what_needs_one_platform_is_refused) {
  on_nodes({"a", "a", "a", "a"}, with_devices(mixed), [](const rank& own) {
    void* pointer = nullptr;
    EXPECT_NE(
        refusal(isthmus_memory_allocate_symmetric(own.communicator, 64, &pointer), ISTHMUS_ERROR_UNSUPPORTED)
            .find("several platforms"),
        std::string::npos);
  });
}

TEST(mixed, without_a_backend_that_joins_platforms_creation_says_why) {
  auto with = with_devices({ISTHMUS_PLATFORM_CUDA, ISTHMUS_PLATFORM_HOST});
  with.prepare = [](int) { setenv("ISTHMUS_BACKEND", "host", 1); };
  on_nodes({"a", "a"}, with, [](const rank& own) {
    EXPECT_EQ(own.status, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(own.failure.message).find("it works on one platform at a time"), std::string::npos)
        << own.failure.message;
    EXPECT_NE(std::string(own.failure.hint).find("mixed"), std::string::npos) << own.failure.hint;
  });
}

}  // namespace
