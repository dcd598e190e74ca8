// Invalid input: every call must report the argument, its value and the rule, write nothing, return immediately
// and leave the communicator usable.
#include "misuse.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <isthmus/memory.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace misuse_test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr std::uint64_t count = 8;

// Two ranks in this process. expect_still_works() checks that they remain usable.
class misuse : public testing::Test {
 protected:
  void SetUp() override { create(20); }
  void create(double timeout_s) {
    const isthmus_device devices[2] = {};
    const auto options = make_options(timeout_s);
    ASSERT_EQ(isthmus_communicator_create_all(2, devices, &options, m_ranks), ISTHMUS_SUCCESS)
        << last_message();
  }
  void TearDown() override {
    for (isthmus_communicator rank : m_ranks) EXPECT_EQ(isthmus_communicator_destroy(rank), ISTHMUS_SUCCESS);
  }
  void expect_still_works() {
    float values[2][3] = {{1, 2, 3}, {10, 20, 30}};
    const auto outcomes = run_on_ranks(2, [&](int rank) {
      return isthmus_allreduce(values[rank], values[rank], 3, ISTHMUS_FLOAT32, ISTHMUS_SUM, m_ranks[rank],
                               nullptr);
    });
    for (const outcome& result : outcomes) EXPECT_EQ(result.status, ISTHMUS_SUCCESS) << result.message;
    EXPECT_EQ(values[0][2], 33);
    EXPECT_EQ(values[1][0], 11);
  }
  isthmus_communicator m_ranks[2] = {};
};

// ---- arguments, for every row of the collective table --------------------------------------------------

// A valid call of rank 0 of two ranks. Tests make it invalid.
struct valid_call {
  explicit valid_call(isthmus_collective collective) {
    std::memset(send, 1, sizeof send);
    std::memset(recv, 2, sizeof recv);
    operation.collective = collective;
    operation.datatype = ISTHMUS_FLOAT32;
    operation.root = collective == ISTHMUS_SEND || collective == ISTHMUS_RECV ? 1 : 0;
    operation.count = collective == ISTHMUS_BARRIER || collective == ISTHMUS_ALLTOALLV ? 0 : count;
    operation.send_buf = send;
    operation.recv_buf = recv;
    operation.send_counts = operation.recv_counts = counts;
    operation.send_displs = operation.recv_displs = displs;
  }
  bool is_untouched() const {
    for (const unsigned char byte : recv)
      if (byte != 2) return false;
    for (const unsigned char byte : send)
      if (byte != 1) return false;
    return true;
  }
  unsigned char send[4 * 4 * count];
  unsigned char recv[4 * 4 * count];
  std::uint64_t counts[2] = {count, count};
  std::uint64_t displs[2] = {0, count};
  isthmus_operation operation{};
};

struct table_row {
  isthmus_collective collective;
  bool has_root, reduces, sends, receives, has_send_counts, has_recv_counts;
};

constexpr bool NONE = false, ROOT = true, PEER = true, ALL = true;
enum class extent { NOTHING, COUNT, COUNT_X_SIZE, COUNTS };
constexpr table_row table[] = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {ISTHMUS_##NAME,                                                                                      \
   peer,                                                                                                \
   reduces != 0,                                                                                        \
   send_ranks,                                                                                          \
   recv_ranks,                                                                                          \
   extent::send_extent == extent::COUNTS,                                                               \
   extent::recv_extent == extent::COUNTS},
#include <isthmus/collectives.def>
};

class argument : public misuse, public testing::WithParamInterface<table_row> {
 protected:
  void expect_refused(const std::string& label, const std::function<void(isthmus_operation&)>& corrupt,
                      const std::vector<std::string>& expected_texts) {
    SCOPED_TRACE(label);
    valid_call call(GetParam().collective);
    corrupt(call.operation);
    // Only rank 0 calls: an invalid argument must be detected without the other rank.
    const isthmus_status status = isthmus_enqueue(m_ranks[0], &call.operation);
    EXPECT_EQ(status, ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_TRUE(call.is_untouched());
    EXPECT_THAT(last_message(), HasSubstr(isthmus_collective_name(GetParam().collective)));
    for (const std::string& text : expected_texts) EXPECT_THAT(last_message(), HasSubstr(text));
  }
};

TEST_P(argument, is_checked_before_the_call_starts) {
  const table_row& row = GetParam();
  expect_refused("datatype", [](auto& o) { o.datatype = ISTHMUS_DATATYPE_COUNT; },
                 {"datatype", std::to_string(ISTHMUS_DATATYPE_COUNT)});
  expect_refused("negative datatype", [](auto& o) { o.datatype = static_cast<isthmus_datatype>(-3); },
                 {"datatype", "-3"});
  expect_refused("stream", [](auto& o) { o.stream = &o; }, {"stream", "NULL"});
  if (row.reduces)
    expect_refused("op", [](auto& o) { o.op = static_cast<isthmus_reduction_op>(77); }, {"op", "77"});
  if (row.has_root) {
    expect_refused("root too large", [](auto& o) { o.root = 2; }, {"= 2", "[0, 2)"});
    expect_refused("root negative", [](auto& o) { o.root = -1; }, {"= -1", "[0, 2)"});
  }
  if (row.sends) expect_refused("send_buf", [](auto& o) { o.send_buf = nullptr; }, {"send_buf", "NULL"});
  if (row.receives) expect_refused("recv_buf", [](auto& o) { o.recv_buf = nullptr; }, {"recv_buf", "NULL"});
  if (row.sends && row.receives)
    expect_refused("overlap", [](auto& o) { o.send_buf = static_cast<const char*>(o.recv_buf) + 4; },
                   {"send_buf", "recv_buf", "overlap"});
  if ((row.sends || row.receives) && row.collective != ISTHMUS_ALLTOALLV)
    expect_refused("count", [](auto& o) { o.count = 1ull << 62; }, {"count"});
  expect_still_works();
}

TEST_P(argument, arrays_of_irregular_blocks_are_checked) {
  const table_row& row = GetParam();
  static const std::uint64_t wrong_counts[] = {count - 1, count};
  static const std::uint64_t overlapping[] = {0, count - 1};
  static const std::uint64_t wrapping[] = {0, ~0ull - 2};
  if (row.has_send_counts) {
    expect_refused("send_counts", [](auto& o) { o.send_counts = nullptr; }, {"send_counts", "NULL"});
    expect_refused("send_displs", [](auto& o) { o.send_displs = nullptr; }, {"send_displs", "NULL"});
    expect_refused("own block", [](auto& o) { o.send_counts = wrong_counts; }, {"send_counts[0]", "7"});
    expect_refused("wrap", [](auto& o) { o.send_displs = wrapping; }, {"send_displs[1]"});
  }
  if (row.has_recv_counts) {
    expect_refused("recv_counts", [](auto& o) { o.recv_counts = nullptr; }, {"recv_counts", "NULL"});
    expect_refused("recv_displs", [](auto& o) { o.recv_displs = nullptr; }, {"recv_displs", "NULL"});
    expect_refused("own block", [](auto& o) { o.recv_counts = wrong_counts; }, {"recv_counts[", "7"});
    expect_refused("receive blocks", [](auto& o) { o.recv_displs = overlapping; }, {"recv_displs", "overlap"});
    expect_refused("wrap", [](auto& o) { o.recv_displs = wrapping; }, {"recv_displs[1]"});
  }
}

INSTANTIATE_TEST_SUITE_P(table, argument, testing::ValuesIn(table),
                         [](const auto& info) { return isthmus_collective_name(info.param.collective); });

// ---- handles --------------------------------------------------------------------------------------------

TEST_F(misuse, unknown_collective_is_rejected) {
  valid_call call(ISTHMUS_ALLREDUCE);
  call.operation.collective = static_cast<isthmus_collective>(99);
  EXPECT_EQ(isthmus_enqueue(m_ranks[0], &call.operation), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), HasSubstr("99"));
  EXPECT_EQ(isthmus_enqueue(m_ranks[0], nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST_F(misuse, invalid_communicators_are_rejected) {
  const isthmus_communicator dead = m_ranks[1];
  ASSERT_EQ(isthmus_communicator_destroy(m_ranks[1]), ISTHMUS_SUCCESS);
  m_ranks[1] = nullptr;
  int stack_value = 0;
  for (const isthmus_communicator handle :
       {dead, isthmus_communicator{}, reinterpret_cast<isthmus_communicator>(&stack_value)}) {
    valid_call call(ISTHMUS_ALLREDUCE);
    const isthmus_status status = isthmus_enqueue(handle, &call.operation);
    EXPECT_THAT(status, AnyOf(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_ERROR_INVALID_ARGUMENT));
    EXPECT_THAT(last_message(), HasSubstr("communicator"));
    EXPECT_TRUE(call.is_untouched());
    int rank = -7;
    EXPECT_NE(isthmus_communicator_rank(handle, &rank), ISTHMUS_SUCCESS);
    EXPECT_EQ(rank, -7);
  }
  EXPECT_EQ(isthmus_communicator_destroy(dead), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_EQ(isthmus_communicator_destroy(nullptr), ISTHMUS_SUCCESS);
}

TEST_F(misuse, group_end_without_start_is_rejected) {
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_THAT(last_message(), HasSubstr("group"));
  expect_still_works();
}

TEST_F(misuse, invalid_call_cancels_its_group) {
  valid_call valid_operation(ISTHMUS_ALLREDUCE);
  valid_call bad(ISTHMUS_ALLREDUCE);
  bad.operation.datatype = ISTHMUS_DATATYPE_COUNT;
  ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
  isthmus_enqueue(m_ranks[0], &valid_operation.operation);
  isthmus_enqueue(m_ranks[1], &bad.operation);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(valid_operation.is_untouched());
  EXPECT_TRUE(bad.is_untouched());
  expect_still_works();
}

TEST_F(misuse, send_to_self_needs_a_group) {
  valid_call call(ISTHMUS_SEND);
  call.operation.root = 0;
  EXPECT_EQ(isthmus_enqueue(m_ranks[0], &call.operation), ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_THAT(last_message(), HasSubstr("group"));
}

TEST_F(misuse, foreign_and_freed_memory_is_rejected) {
  int own = 0;
  EXPECT_NE(isthmus_memory_free_symmetric(m_ranks[0], &own), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_memory_free_symmetric(m_ranks[0], nullptr), ISTHMUS_SUCCESS);
  void* blocks[2] = {};
  run_on_ranks(2,
               [&](int rank) { return isthmus_memory_allocate_symmetric(m_ranks[rank], 4096, &blocks[rank]); });
  ASSERT_NE(blocks[0], nullptr);
  EXPECT_EQ(isthmus_memory_free_symmetric(m_ranks[0], blocks[0]), ISTHMUS_SUCCESS);
  EXPECT_NE(isthmus_memory_free_symmetric(m_ranks[0], blocks[0]), ISTHMUS_SUCCESS);
  expect_still_works();
}

// ---- absent ranks and aborts ----------------------------------------------------------------------------

TEST_F(misuse, absent_rank_is_named) {
  TearDown();
  create(4);  // also the time in which instrumented ranks must connect on a loaded machine
  valid_call call(ISTHMUS_ALLREDUCE);
  const isthmus_status status = isthmus_enqueue(m_ranks[0], &call.operation);
  EXPECT_EQ(status, ISTHMUS_ERROR_TIMEOUT) << last_message();
  EXPECT_THAT(last_message(), HasSubstr("1"));
  // The communicator is aborted on every rank from now on.
  EXPECT_EQ(isthmus_barrier(m_ranks[0], nullptr), ISTHMUS_ERROR_ABORTED);
  EXPECT_NE(isthmus_barrier(m_ranks[1], nullptr), ISTHMUS_SUCCESS);
  EXPECT_NE(isthmus_communicator_async_error(m_ranks[0]), ISTHMUS_SUCCESS);
}

TEST_F(misuse, abort_releases_a_waiting_rank) {
  std::jthread abort_thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    isthmus_communicator_abort(m_ranks[0]);
  });
  const isthmus_status status = isthmus_barrier(m_ranks[1], nullptr);
  EXPECT_THAT(status, AnyOf(ISTHMUS_ERROR_ABORTED, ISTHMUS_ERROR_REMOTE)) << last_message();
}

}  // namespace
}  // namespace misuse_test
