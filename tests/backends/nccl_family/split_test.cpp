// Native handling of splits and symmetric heap blocks. One process per test, as in contract_test.cpp.
#include <gtest/gtest.h>

#include "harness.hpp"
#include "standin_control.hpp"

namespace {

using harness::rank;
using harness::rank_group;
using harness::settings;
using steering::calls;
using steering::fail_next;
using steering::live;
using steering::standin_symbol;

std::size_t count(const std::string& name) {
  const std::string all = calls();
  std::size_t matches = 0;
  for (std::size_t position = all.find(name + "\n"); position != std::string::npos;
       position = all.find(name + "\n", position + 1))
    ++matches;
  return matches;
}
int registered() { return standin_symbol<decltype(&standin_registered)>("standin_registered")(); }
void clear_calls() { standin_symbol<decltype(&standin_clear_calls)>("standin_clear_calls")(); }

std::vector<void*> split(rank_group& parent, const std::vector<int>& colors, const std::vector<int>& keys) {
  std::vector<void*> split_states(colors.size());
  parent.for_each_rank([&](rank& self) {
    const auto me = static_cast<std::size_t>(self.context.rank);
    split_states[me] = parent.backend().split(self.state, colors[me], keys[me]);
  });
  return split_states;
}

// Each rank contributes its rank + 1.
void expect_sum(rank_group& group, float expected) {
  std::vector<float> values;
  for (int me = 0; me < group.size(); ++me) values.push_back(static_cast<float>(me + 1));
  group.for_each_rank([&](rank& self) {
    float& value = values[static_cast<std::size_t>(self.context.rank)];
    const isthmus_operation operation = steering::allreduce(self, &value, 1);
    EXPECT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS)
        << self.last.message;
    group.synchronize(self);
    EXPECT_EQ(value, expected);
  });
}

TEST(split, creates_the_subcommunicator_natively) {
  settings four;
  four.size = 4;
  rank_group parent(four);
  ASSERT_EQ(parent.at(0).created, ISTHMUS_SUCCESS) << parent.at(0).last.message;
  clear_calls();
  const std::vector<void*> split_states = split(parent, {0, -1, 0, 0}, {3, 0, 2, 1});
  EXPECT_EQ(split_states[1], nullptr) << "a rank without a color gets no subcommunicator";
  settings three;
  three.size = 3;
  three.split_states = {split_states[3], split_states[2], split_states[0]};  // in key order
  {
    rank_group child(three);
    for (int me = 0; me < 3; ++me)
      ASSERT_EQ(child.at(me).created, ISTHMUS_SUCCESS) << child.at(me).last.message;
    EXPECT_EQ(count("ncclCommSplit"), 7u)
        << "four for the parent, then a working communicator for each of three ranks";
    EXPECT_EQ(count("ncclCommInitRankConfig"), 0u);
    EXPECT_EQ(count("ncclGetUniqueId"), 0u);
    EXPECT_NE(child.at(0).log[0].find("split off the parent's"), std::string::npos) << child.at(0).log[0];
    expect_sum(child, 6);
    expect_sum(parent, 10);
  }
  EXPECT_EQ(live(), 8);
  parent.destroy();
  EXPECT_EQ(live(), 0);
}

TEST(split, abort_does_not_affect_the_parent) {
  rank_group parent({});
  settings child_settings;
  child_settings.split_states = split(parent, {5, 5}, {0, 1});
  rank_group child(child_settings);
  ASSERT_EQ(child.at(0).created, ISTHMUS_SUCCESS) << child.at(0).last.message;
  child.abort();
  EXPECT_EQ(parent.backend().poll(parent.at(0).state), ISTHMUS_SUCCESS);
  expect_sum(parent, 3);
}

// The parent is aborted. The survivors create a native communicator with a new id.
TEST(shrink, creates_a_new_communicator_after_abort) {
  settings three;
  three.size = 3;
  rank_group parent(three);
  ASSERT_EQ(parent.at(0).created, ISTHMUS_SUCCESS) << parent.at(0).last.message;
  expect_sum(parent, 6);
  parent.abort();
  clear_calls();
  rank_group survivors({});
  for (int me = 0; me < 2; ++me)
    ASSERT_EQ(survivors.at(me).created, ISTHMUS_SUCCESS) << survivors.at(me).last.message;
  EXPECT_EQ(count("ncclGetUniqueId"), 1u);
  EXPECT_EQ(count("ncclCommInitRankConfig"), 2u);
  expect_sum(survivors, 3);
  parent.destroy();
  expect_sum(survivors, 3);
  survivors.destroy();
  steering::expect_released();
}

TEST(split, failure_on_one_rank_recreates_on_all_ranks) {
  rank_group parent({});
  ASSERT_EQ(parent.at(0).created, ISTHMUS_SUCCESS);
  settings child_settings;
  child_settings.split_states = split(parent, {0, 0}, {0, 1});
  // Rank 1 has lost its split communicator. Rank 0 has no id yet and must create one now.
  parent.backend().discard_split_state(std::exchange(child_settings.split_states[1], nullptr));
  clear_calls();
  rank_group child(child_settings);
  for (int me = 0; me < 2; ++me) ASSERT_EQ(child.at(me).created, ISTHMUS_SUCCESS) << child.at(me).last.message;
  EXPECT_EQ(count("ncclGetUniqueId"), 1u);
  EXPECT_EQ(count("ncclCommInitRankConfig"), 2u);
  expect_sum(child, 3);
}

TEST(split, mismatched_ranks_recreate_the_communicator) {
  rank_group parent({});
  ASSERT_EQ(parent.at(0).created, ISTHMUS_SUCCESS);
  settings child_settings;
  child_settings.split_states = split(parent, {0, 0}, {0, 1});
  std::swap(child_settings.split_states[0],
            child_settings.split_states[1]);  // ranks in a different order than the library's
  clear_calls();
  rank_group child(child_settings);
  ASSERT_EQ(child.at(0).created, ISTHMUS_SUCCESS) << child.at(0).last.message;
  EXPECT_EQ(count("ncclCommInitRankConfig"), 2u);
  expect_sum(child, 3);
}

TEST(split, native_failure_returns_null_and_logs) {
  rank_group parent({});
  ASSERT_EQ(parent.at(0).created, ISTHMUS_SUCCESS);
  fail_next("ncclCommSplit", 1, 3);
  EXPECT_EQ(parent.backend().split(parent.at(0).state, 0, 0), nullptr);
  ASSERT_FALSE(parent.at(0).log.empty());
  EXPECT_NE(parent.at(0).log.back().find("ncclInternalError"), std::string::npos) << parent.at(0).log.back();
}

// A block that every rank has a copy of.
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
  group.for_each_rank([&](rank& self) {
    const isthmus_heap_block view = block.view();
    group.backend().register_block(self.state, &view);
  });
}

void expect_registered_and_released(const settings& config, const std::string& method) {
  rank_group group(config);
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  standin_block first(2, 1), second(2, 2);
  announce(group, first);
  announce(group, second);
  EXPECT_EQ(registered(), 4);
  EXPECT_EQ(count("nccl" + method + "Register"), 4u);
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

TEST(blocks, are_registered_as_windows_on_request) {
  settings config;
  config.options["registration"] = "windows";
  expect_registered_and_released(config, "CommWindow");
}

TEST(blocks, are_not_registered_when_off) {
  settings config;
  config.options["registration"] = "off";
  rank_group group(config);
  standin_block block(2);
  announce(group, block);
  EXPECT_EQ(registered(), 0);
}

TEST(blocks, failure_on_one_rank_deregisters_on_all_ranks) {
  settings config;
  config.options["registration"] = "windows";
  rank_group group(config);
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

TEST(blocks, require_a_library_with_registration) {
  settings config;
  config.options["library"] = harness::standin_path("standin_nccl_older");
  rank_group group(config);
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  standin_block block(2);
  announce(group, block);
  EXPECT_NE(group.at(0).log.back().find("lacks ncclCommRegister"), std::string::npos) << group.at(0).log.back();
}

TEST(blocks, unknown_registration_option_is_refused) {
  settings config;
  config.options["registration"] = "always";
  rank_group group(config);
  EXPECT_EQ(group.at(0).created, ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(group.at(0).last.message.find("off, buffers or windows"), std::string::npos)
      << group.at(0).last.message;
}

}  // namespace
