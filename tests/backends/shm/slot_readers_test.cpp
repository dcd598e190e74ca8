// Which ranks a rank waits for before it reuses a slot.
#include <gtest/gtest.h>

#include "local_groups.hpp"

namespace shm_test {
namespace {

constexpr int ranks = 3, root = 0, sender = 1, other_sender = 2;

class slot_readers : public testing::Test {
 protected:
  void allocate(std::uint64_t numbers, int only_reader) {
    for (int r = 0; r < ranks; ++r) m_first = groups[r].allocate_sequence_numbers(numbers, only_reader);
  }
  std::uint64_t depth() { return groups[root].sizes().depth; }

  local_groups groups{ranks};
  std::uint64_t m_first = 0;
};

TEST_F(slot_readers, sender_waits_only_for_the_single_reader) {
  allocate(depth(), root);
  allocate(1, root);
  EXPECT_THROW(groups[sender].reserve_slot(m_first), wait_without_end);
  groups[root].complete(0);
  EXPECT_NO_THROW(groups[sender].reserve_slot(m_first));
}

TEST_F(slot_readers, sender_waits_for_all_readers_of_an_earlier_call) {
  allocate(1, isthmus::all_ranks);
  allocate(depth(), root);
  groups[root].complete(depth());
  EXPECT_THROW(groups[sender].reserve_slot(depth()), wait_without_end);
  groups[other_sender].complete(0);
  EXPECT_NO_THROW(groups[sender].reserve_slot(depth()));
}

TEST_F(slot_readers, sender_waits_for_the_previous_root) {
  allocate(depth(), root);
  allocate(1, other_sender);
  groups[other_sender].complete(depth());
  EXPECT_THROW(groups[sender].reserve_slot(depth()), wait_without_end);
  groups[root].complete(0);
  EXPECT_NO_THROW(groups[sender].reserve_slot(depth()));
}

TEST_F(slot_readers, refreshed_sender_needs_no_header) {
  allocate(depth(), root);
  groups[root].complete(depth() - 1);
  groups[sender].refresh_completed(depth() - 1);
  allocate(depth(), root);
  groups[root].header(root).completed_sequence.store(0);  // would make a rank wait that loads it
  for (std::uint64_t i = 0; i < depth(); ++i) EXPECT_NO_THROW(groups[sender].reserve_slot(m_first + i));
}

}  // namespace
}  // namespace shm_test
