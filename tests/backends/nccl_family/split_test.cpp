// Splits and blocks of the symmetric heap: what the backend makes of them natively. A process a test, as in
// contract_test.cpp.
#include <gtest/gtest.h>

#include "harness.hpp"
#include "standin_control.hpp"

namespace {

using harness::rank_group;
using harness::rank;
using harness::settings;
using steering::calls;
using steering::fail_next;
using steering::live;
using steering::steer;

std::size_t count(const std::string& name) {
  const std::string all = calls();
  std::size_t found = 0;
  for (std::size_t at = all.find(name + "\n"); at != std::string::npos; at = all.find(name + "\n", at + 1))
    ++found;
  return found;
}
int registered() { return steer<decltype(&standin_registered)>("standin_registered")(); }
void clear_calls() { steer<decltype(&standin_clear_calls)>("standin_clear_calls")(); }

std::vector<void*> split(rank_group& whole, const std::vector<int>& colors, const std::vector<int>& keys) {
  std::vector<void*> parts(colors.size());
  whole.each([&](rank& self) {
    const auto me = static_cast<std::size_t>(self.context.rank);
    parts[me] = whole.backend().split(self.state, colors[me], keys[me]);
  });
  return parts;
}

// Every rank contributes its number + 1.
void expect_sum(rank_group& group, float requested) {
  std::vector<float> values;
  for (int me = 0; me < group.size(); ++me) values.push_back(static_cast<float>(me + 1));
  group.each([&](rank& self) {
    float& value = values[static_cast<std::size_t>(self.context.rank)];
    const isthmus_operation operation = steering::allreduce(self, &value, 1);
    EXPECT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS)
        << self.last.message;
    group.synchronize(self);
    EXPECT_EQ(value, requested);
  });
}

TEST(split, makes_the_part_out_of_the_whole) {
  settings four;
  four.size = 4;
  rank_group whole(four);
  ASSERT_EQ(whole.at(0).created, ISTHMUS_SUCCESS) << whole.at(0).last.message;
  clear_calls();
  const std::vector<void*> parts = split(whole, {0, -1, 0, 0}, {3, 0, 2, 1});
  EXPECT_EQ(parts[1], nullptr) << "no color, no part";
  settings three;
  three.size = 3;
  three.parts = {parts[3], parts[2], parts[0]};  // in the order of the keys
  {
    rank_group part(three);
    for (int me = 0; me < 3; ++me) ASSERT_EQ(part.at(me).created, ISTHMUS_SUCCESS) << part.at(me).last.message;
    EXPECT_EQ(count("ncclCommSplit"), 7u)
        << "four ranks of the whole, then a working communicator for each of three";
    EXPECT_EQ(count("ncclCommInitRankConfig"), 0u);
    EXPECT_EQ(count("ncclGetUniqueId"), 0u);
    EXPECT_NE(part.at(0).log[0].find("split off the parent's"), std::string::npos) << part.at(0).log[0];
    expect_sum(part, 6);
    expect_sum(whole, 10);
  }
  EXPECT_EQ(live(), 8);
  whole.destroy();
  EXPECT_EQ(live(), 0);
}

TEST(split, abort_of_a_part_leaves_the_whole_alone) {
  rank_group whole({});
  settings both;
  both.parts = split(whole, {5, 5}, {0, 1});
  rank_group part(both);
  ASSERT_EQ(part.at(0).created, ISTHMUS_SUCCESS) << part.at(0).last.message;
  part.abort();
  EXPECT_EQ(whole.backend().poll(whole.at(0).state), ISTHMUS_SUCCESS);
  expect_sum(whole, 3);
}

// Poison has aborted the whole; what the survivors make is a native communicator with an id of its own.
TEST(shrink, meets_anew_beside_what_was_aborted) {
  settings three;
  three.size = 3;
  rank_group whole(three);
  ASSERT_EQ(whole.at(0).created, ISTHMUS_SUCCESS) << whole.at(0).last.message;
  expect_sum(whole, 6);
  whole.abort();
  clear_calls();
  rank_group rest({});
  for (int me = 0; me < 2; ++me) ASSERT_EQ(rest.at(me).created, ISTHMUS_SUCCESS) << rest.at(me).last.message;
  EXPECT_EQ(count("ncclGetUniqueId"), 1u);
  EXPECT_EQ(count("ncclCommInitRankConfig"), 2u);
  expect_sum(rest, 3);
  whole.destroy();
  expect_sum(rest, 3);
  rest.destroy();
  EXPECT_EQ(live(), 0);
}

TEST(split, that_fails_on_one_rank_is_made_anew_on_all) {
  rank_group whole({});
  ASSERT_EQ(whole.at(0).created, ISTHMUS_SUCCESS);
  settings both;
  both.parts = split(whole, {0, 0}, {0, 1});
  // Rank 1 lost its part: rank 0 has no id ready and must make one now.
  whole.backend().discard_split_state(std::exchange(both.parts[1], nullptr));
  clear_calls();
  rank_group part(both);
  for (int me = 0; me < 2; ++me) ASSERT_EQ(part.at(me).created, ISTHMUS_SUCCESS) << part.at(me).last.message;
  EXPECT_EQ(count("ncclGetUniqueId"), 1u);
  EXPECT_EQ(count("ncclCommInitRankConfig"), 2u);
  expect_sum(part, 3);
}

TEST(split, whose_part_does_not_fit_is_made_anew) {
  rank_group whole({});
  ASSERT_EQ(whole.at(0).created, ISTHMUS_SUCCESS);
  settings both;
  both.parts = split(whole, {0, 0}, {0, 1});
  std::swap(both.parts[0], both.parts[1]);  // ranks in another order than the library's
  clear_calls();
  rank_group part(both);
  ASSERT_EQ(part.at(0).created, ISTHMUS_SUCCESS) << part.at(0).last.message;
  EXPECT_EQ(count("ncclCommInitRankConfig"), 2u);
  expect_sum(part, 3);
}

TEST(split, that_the_library_refuses_gives_no_part_and_says_so) {
  rank_group whole({});
  ASSERT_EQ(whole.at(0).created, ISTHMUS_SUCCESS);
  fail_next("ncclCommSplit", 1, 3);
  EXPECT_EQ(whole.backend().split(whole.at(0).state, 0, 0), nullptr);
  ASSERT_FALSE(whole.at(0).log.empty());
  EXPECT_NE(whole.at(0).log.back().find("ncclInternalError"), std::string::npos) << whole.at(0).log.back();
}

// A block of which every rank has a copy.
struct standin_block {
  explicit standin_block(int ranks, std::uint64_t number = 1) : memory(4096), id(number) {
    for (int rank = 0; rank < ranks; ++rank) peers.push_back(memory.data() + 1024 * rank);
  }
  isthmus_heap_block view() { return {id, 1024, peers.data()}; }
  std::vector<char> memory;
  std::vector<void*> peers;
  std::uint64_t id;
};

void announce(rank_group& group, standin_block& block) {
  group.each([&](rank& self) {
    const isthmus_heap_block view = block.view();
    group.backend().register_block(self.state, &view);
  });
}

void expect_registered_and_released(const settings& requested, const std::string& way) {
  rank_group group(requested);
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  standin_block first(2, 1), second(2, 2);
  announce(group, first);
  announce(group, second);
  EXPECT_EQ(registered(), 4);
  EXPECT_EQ(count("nccl" + way + "Register"), 4u);
  const isthmus_heap_block view = first.view();
  group.backend().unregister_block(group.at(0).state, &view);  // local
  EXPECT_EQ(registered(), 3);
  group.backend().unregister_block(group.at(0).state, &view);  // unknown by now
  EXPECT_EQ(registered(), 3);
  expect_sum(group, 3);
  group.destroy();
  EXPECT_EQ(registered(), 0);
}

TEST(blocks, are_registered_as_buffers) { expect_registered_and_released({}, "Comm"); }

TEST(blocks, are_registered_as_symmetric_windows_where_asked) {
  settings requested;
  requested.options["registration"] = "windows";
  expect_registered_and_released(requested, "CommWindow");
}

TEST(blocks, are_left_alone_where_asked) {
  settings requested;
  requested.options["registration"] = "off";
  rank_group group(requested);
  standin_block block(2);
  announce(group, block);
  EXPECT_EQ(registered(), 0);
}

TEST(blocks, that_one_rank_cannot_register_are_registered_by_none) {
  settings requested;
  requested.options["registration"] = "windows";
  rank_group group(requested);
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS);
  fail_next("ncclCommWindowRegister", 2, 1);
  standin_block block(2);
  announce(group, block);
  EXPECT_EQ(registered(), 0);
  for (int me = 0; me < 2; ++me) {
    ASSERT_FALSE(group.at(me).log.empty());
    EXPECT_NE(group.at(me).log.back().find("ncclCommWindowRegister: ncclUnhandledCudaError"), std::string::npos)
        << group.at(me).log.back();
  }
  expect_sum(group, 3);
}

TEST(blocks, need_a_library_that_can) {
  settings requested;
  requested.options["library"] = harness::standin_path("standin_nccl_older");
  rank_group group(requested);
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  standin_block block(2);
  announce(group, block);
  EXPECT_NE(group.at(0).log.back().find("lacks ncclCommRegister"), std::string::npos) << group.at(0).log.back();
}

TEST(blocks, option_with_another_word_is_refused) {
  settings requested;
  requested.options["registration"] = "always";
  rank_group group(requested);
  EXPECT_EQ(group.at(0).created, ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(group.at(0).last.message.find("off, buffers, windows"), std::string::npos)
      << group.at(0).last.message;
}

}  // namespace
