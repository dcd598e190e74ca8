// Backend hooks: splits of the communicator, and allocation and release of symmetric heap blocks.
#include <isthmus/memory.h>

#include <algorithm>
#include <set>

#include "core/support.hpp"

namespace {

using standin::event;

// Storage for split states: rank r of the parent returns the address of element r.
int state_storage[8];

standin::script splitting_script() {
  standin::script script;
  script.split = [](int rank, int color, int) {
    return color < 0 ? nullptr : static_cast<void*>(&state_storage[rank]);
  };
  return script;
}

std::set<void*> states_of(event kind) {
  std::set<void*> states;
  for (const auto& each : standin::records(kind))
    if (each.part != nullptr) states.insert(each.part);
  return states;
}

TEST(split_hook, passes_each_rank_its_own_split_state) {
  standin::reset(splitting_script());
  test::ranks ranks(4, standin::configuration());
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  standin::reset(splitting_script());
  test::run_on_each_rank(4, [&](int rank) {
    isthmus_communicator subcommunicator = nullptr;
    const int color = rank == 3 ? ISTHMUS_NO_COLOR : 0;
    ASSERT_EQ(isthmus_communicator_split(ranks[rank], color, -rank, &subcommunicator), ISTHMUS_SUCCESS)
        << test::last_error().message;
    isthmus_communicator_destroy(subcommunicator);
  });
  EXPECT_EQ(standin::records(event::split).size(), 4u);
  const auto created = standin::records(event::create);
  ASSERT_EQ(created.size(), 3u);
  for (const auto& each : created)  // the keys reverse the rank order
    EXPECT_EQ(each.part, &state_storage[2 - each.rank]) << "rank " << each.rank << " of the subcommunicator";
  EXPECT_TRUE(standin::records(event::discard_split_state).empty());
}

TEST(split_hook, new_communicators_have_no_split_state) {
  standin::reset(splitting_script());
  test::ranks ranks(2, standin::configuration());
  EXPECT_EQ(standin::records(event::create).size(), 2u);
  EXPECT_TRUE(states_of(event::create).empty());
}

TEST(split_hook, unused_split_states_are_discarded) {
  standin::reset(splitting_script());
  test::ranks ranks(2, standin::configuration());
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  standin::script unusable = splitting_script();
  unusable.capabilities =
      ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS;  // the subcommunicator has two ranks in this process
  standin::reset(unusable);
  test::run_on_each_rank(2, [&](int rank) {
    isthmus_communicator subcommunicator = nullptr;
    isthmus_communicator_split(ranks[rank], 0, rank, &subcommunicator);
    isthmus_communicator_destroy(subcommunicator);
  });
  EXPECT_TRUE(standin::records(event::create).empty());
  EXPECT_EQ(states_of(event::discard_split_state), (std::set<void*>{&state_storage[0], &state_storage[1]}));
}

TEST(split_hook, failed_create_still_owns_its_split_state) {
  standin::reset(splitting_script());
  test::ranks ranks(2, standin::configuration());
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  standin::script refusing = splitting_script();
  refusing.create = [](int) { return ISTHMUS_ERROR_UNSUPPORTED; };
  standin::reset(refusing);
  test::run_on_each_rank(2, [&](int rank) {
    isthmus_communicator subcommunicator = nullptr;
    isthmus_communicator_split(ranks[rank], 0, rank, &subcommunicator);
    isthmus_communicator_destroy(subcommunicator);
  });
  EXPECT_EQ(states_of(event::create).size(), 2u);
  EXPECT_TRUE(standin::records(event::discard_split_state).empty());
}

TEST(block_hooks, follow_allocations_and_frees) {
  standin::reset();
  test::ranks ranks(2, standin::configuration());
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  void* first[2] = {};
  test::run_on_each_rank(2, [&](int rank) {
    void* empty = nullptr;
    EXPECT_EQ(isthmus_memory_allocate_symmetric(ranks[rank], 5000, &first[rank]), ISTHMUS_SUCCESS);
    EXPECT_EQ(isthmus_memory_allocate_symmetric(ranks[rank], 0, &empty), ISTHMUS_SUCCESS);
  });
  const auto added = standin::records(event::register_block);
  ASSERT_EQ(added.size(), 2u) << "one block on each of two ranks; a size of zero allocates none";
  EXPECT_EQ(added[0].block.id, added[1].block.id) << "the id is equal on all ranks";
  EXPECT_EQ(added[0].block.bytes, 5000u);

  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], static_cast<char*>(first[0]) + 8),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(standin::records(event::unregister_block).empty()) << "the address is not the start of a block";
  EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], first[0]), ISTHMUS_SUCCESS);
  const auto removed = standin::records(event::unregister_block);
  ASSERT_EQ(removed.size(), 1u) << "freeing is local: rank 1 keeps its block";
  EXPECT_EQ(removed[0].rank, 0);
  EXPECT_EQ(removed[0].block.id, added[0].block.id);
}

}  // namespace
