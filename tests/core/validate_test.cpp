// Validation of every rule of the collective table, for every collective and rank. The stand-in shows that an
// invalid call reaches no backend and changes no buffer.
#include <functional>
#include <limits>

#include "core/support.hpp"
#include "core/test_call.hpp"

namespace {

using test::row;
using test::test_call;

constexpr int size = 4, root = 1;

class validate_test : public testing::Test {
 protected:
  validate_test() : m_ranks((standin::reset(), size), standin::configuration()) {}
  void SetUp() override { ASSERT_EQ(m_ranks.status(), ISTHMUS_SUCCESS) << m_ranks.message(); }

  // Calls check(row, rank, call) for every collective and rank. The root or peer is rank 1. Rank 1 itself is
  // skipped for send and recv, which would need a group.
  void for_each(const std::function<void(const row&, int, test_call&)>& check) {
    for (const row& each : test::rows())
      for (int rank = 0; rank < size; ++rank) {
        if (each.peer == "PEER" && rank == root) continue;
        SCOPED_TRACE(std::string(each.name) + " on rank " + std::to_string(rank));
        test_call call(each, rank, size, root);
        check(each, rank, call);
      }
  }

  void expect_accepted(int rank, const test_call& call) {
    const auto records_before = standin::records(standin::event::enqueue).size();
    EXPECT_EQ(isthmus_enqueue(m_ranks[rank], &call.operation), ISTHMUS_SUCCESS) << test::last_error().message;
    EXPECT_EQ(standin::records(standin::event::enqueue).size(), records_before + 1);
  }

  void expect_refused(int rank, const test_call& call, const std::string& argument,
                      isthmus_status status = ISTHMUS_ERROR_INVALID_ARGUMENT) {
    const auto records_before = standin::records(standin::event::enqueue).size();
    EXPECT_EQ(isthmus_enqueue(m_ranks[rank], &call.operation), status);
    const auto error = test::last_error();
    EXPECT_NE(std::string(error.message).find(argument), std::string::npos) << error.message;
    EXPECT_STRNE(error.hint, "");
    EXPECT_EQ(error.rank, rank);
    EXPECT_EQ(standin::records(standin::event::enqueue).size(), records_before);
    EXPECT_TRUE(call.is_untouched());
    EXPECT_EQ(isthmus_communicator_async_error(m_ranks[rank]), ISTHMUS_SUCCESS)
        << "an invalid call must not abort the communicator";
  }

  test::ranks m_ranks;
};

TEST_F(validate_test, accepts_valid_calls) {
  for_each([&](const row&, int rank, test_call& call) { expect_accepted(rank, call); });
}

TEST_F(validate_test, rejects_collective_out_of_range) {
  for (const int value : {-1, static_cast<int>(ISTHMUS_COLLECTIVE_COUNT), 1000}) {
    test_call call(test::rows()[ISTHMUS_ALLREDUCE], 0, size, root);
    call.operation.collective = static_cast<isthmus_collective>(value);
    const auto records_before = standin::records(standin::event::enqueue).size();
    EXPECT_EQ(isthmus_enqueue(m_ranks[0], &call.operation), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(test::last_error().message).find("collective = " + std::to_string(value)),
              std::string::npos);
    EXPECT_EQ(standin::records(standin::event::enqueue).size(), records_before);
  }
}

TEST_F(validate_test, rejects_datatype_out_of_range) {
  for_each([&](const row&, int rank, test_call& call) {
    for (const int value : {-1, static_cast<int>(ISTHMUS_DATATYPE_COUNT)}) {
      call.operation.datatype = static_cast<isthmus_datatype>(value);
      expect_refused(rank, call, "datatype = " + std::to_string(value));
    }
  });
}

TEST_F(validate_test, rejects_op_out_of_range_of_reductions) {
  for_each([&](const row& each, int rank, test_call& call) {
    call.operation.op = ISTHMUS_REDUCTION_OP_COUNT;
    if (each.reduces)
      expect_refused(rank, call, "op = " + std::to_string(ISTHMUS_REDUCTION_OP_COUNT));
    else
      expect_accepted(rank, call);
  });
}

TEST_F(validate_test, rejects_root_out_of_range_of_rooted_calls) {
  for_each([&](const row& each, int rank, test_call& call) {
    for (const int value : {-1, size, std::numeric_limits<int>::max()}) {
      call.operation.root = value;
      if (each.peer == "NONE")
        expect_accepted(rank, call);
      else
        expect_refused(rank, call, (each.peer == "ROOT" ? "root = " : "peer = ") + std::to_string(value));
    }
  });
}

TEST_F(validate_test, rejects_null_buffers_that_are_used) {
  for_each([&](const row&, int rank, test_call& call) {
    const auto valid = call.operation;
    call.operation.send_buf = nullptr;
    if (call.sends())
      expect_refused(rank, call, "send_buf is NULL");
    else
      expect_accepted(rank, call);
    call.operation = valid;
    call.operation.recv_buf = nullptr;
    if (call.receives())
      expect_refused(rank, call, "recv_buf is NULL");
    else
      expect_accepted(rank, call);
  });
}

TEST_F(validate_test, accepts_null_buffers_of_zero_bytes) {
  for_each([&](const row&, int rank, test_call& call) {
    call.operation.count = 0;
    std::fill(call.counts().begin(), call.counts().end(), 0);
    call.operation.send_buf = nullptr;
    call.operation.recv_buf = nullptr;
    expect_accepted(rank, call);
  });
}

TEST_F(validate_test, ignores_unused_buffers_and_arrays) {
  for_each([&](const row& each, int rank, test_call& call) {
    auto* garbage = reinterpret_cast<std::uint64_t*>(1);  // must not be read
    if (!call.sends()) {
      call.operation.send_buf = garbage;
      call.operation.send_counts = call.operation.send_displs = garbage;
    }
    if (!call.receives()) {
      call.operation.recv_buf = garbage;
      call.operation.recv_counts = call.operation.recv_displs = garbage;
    }
    if (each.collective == ISTHMUS_BARRIER) return;
    expect_accepted(rank, call);
    ASSERT_EQ(isthmus_group_start(),
              ISTHMUS_SUCCESS);  // a group copies only arrays that are used
    EXPECT_EQ(isthmus_enqueue(m_ranks[rank], &call.operation), ISTHMUS_SUCCESS);
    EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << test::last_error().message;
  });
}

TEST_F(validate_test, rejects_counts_that_overflow) {
  for_each([&](const row& each, int rank, test_call& call) {
    if (each.collective == ISTHMUS_BARRIER || each.collective == ISTHMUS_ALLTOALLV) return;
    call.operation.datatype = ISTHMUS_FLOAT64;
    for (const std::uint64_t value : {std::uint64_t{1} << 61, std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
      call.operation.count = value;
      // Irregular collectives also break the rule for the own block. Either rule may be reported.
      expect_refused(rank, call, std::string(each.name));
    }
  });
}

TEST_F(validate_test, counts_that_overflow_are_named) {
  struct {
    isthmus_collective collective;
    std::uint64_t count;
    const char* text;
  } const cases[] = {
      {ISTHMUS_ALLREDUCE, std::uint64_t{1} << 60, "allreduce: count = 1152921504606846976 elements of float64"},
      {ISTHMUS_ALLTOALL, std::uint64_t{1} << 58, "alltoall: count * size = 288230376151711744 elements"},
      {ISTHMUS_ALLGATHER, std::uint64_t{1} << 58, "allgather: count * size = 288230376151711744 elements"}};
  for (const auto& [collective, count, text] : cases) {
    test_call call(test::rows()[collective], 0, size, root);
    call.operation.datatype = ISTHMUS_FLOAT64;
    call.operation.count = count;
    expect_refused(0, call, text);
  }
}

TEST_F(validate_test, rejects_displacements_that_overflow) {
  for_each([&](const row& each, int rank, test_call& call) {
    const bool sends = call.sends() && each.send_extent == "COUNTS";
    const bool receives = call.receives() && each.recv_extent == "COUNTS";
    if (!sends && !receives) return;
    for (const std::uint64_t value : {~std::uint64_t{0}, std::uint64_t{1} << 62}) {
      call.displs()[3] = value;
      expect_refused(rank, call, sends ? "send_" : "recv_");
    }
  });
}

TEST_F(validate_test, rejects_missing_arrays) {
  for_each([&](const row& each, int rank, test_call& call) {
    const auto valid = call.operation;
    if (call.sends() && each.send_extent == "COUNTS") {
      call.operation.send_counts = nullptr;
      expect_refused(rank, call, "send_counts is NULL");
      call.operation = valid;
      call.operation.send_displs = nullptr;
      expect_refused(rank, call, "send_displs is NULL");
      call.operation = valid;
    }
    if (call.receives() && each.recv_extent == "COUNTS") {
      call.operation.recv_counts = nullptr;
      expect_refused(rank, call, "recv_counts is NULL");
      call.operation = valid;
      call.operation.recv_displs = nullptr;
      expect_refused(rank, call, "recv_displs is NULL");
    }
  });
}

TEST_F(validate_test, rejects_contradicting_sizes_of_own_block) {
  for_each([&](const row& each, int rank, test_call& call) {
    const bool described =
        (call.sends() && each.send_extent == "COUNTS") || (call.receives() && each.recv_extent == "COUNTS");
    if (!described) return;
    std::vector<std::uint64_t> other = call.counts();
    other[static_cast<std::size_t>(rank)] -= 1;
    if (each.collective == ISTHMUS_ALLTOALLV)
      call.operation.recv_counts = other.data();
    else
      call.operation.count -= 1;
    expect_refused(rank, call, "differs from");
  });
}

TEST_F(validate_test, rejects_overlapping_receive_blocks) {
  for_each([&](const row& each, int rank, test_call& call) {
    if (!call.receives() || each.recv_extent != "COUNTS") return;
    std::swap(call.displs()[0],
              call.displs()[3]);  // out of order, and block 3 now overlaps the next block
    call.displs()[3] = call.displs()[1] + 1;
    expect_refused(rank, call, "two receive blocks overlap");
  });
}

TEST_F(validate_test, accepts_blocks_in_any_order) {
  for_each([&](const row& each, int rank, test_call& call) {
    if (!call.receives() || each.recv_extent != "COUNTS") return;
    call.displs() = {30, 20, 10, 0};
    expect_accepted(rank, call);
  });
}

TEST_F(validate_test, accepts_documented_in_place_forms) {
  for_each([&](const row& each, int rank, test_call& call) {
    if (!call.sends() || !call.receives() || each.in_place == "NEVER") return;
    call.make_in_place();
    expect_accepted(rank, call);
  });
}

TEST_F(validate_test, rejects_other_overlaps) {
  for_each([&](const row&, int rank, test_call& call) {
    if (!call.sends() || !call.receives()) return;
    call.make_in_place();
    const auto* shifted = static_cast<const float*>(call.operation.send_buf) + 1;
    call.operation.send_buf = shifted;
    expect_refused(rank, call, "overlap");
  });
}

TEST_F(validate_test, accepts_interleaved_irregular_blocks) {
  const row& each = test::rows()[ISTHMUS_ALLTOALLV];
  test_call call(each, 0, size, root);
  std::vector<float> buffer(64);
  const std::vector<std::uint64_t> counts(size, 3), to{0, 8, 16, 24}, from{4, 12, 20, 28};
  call.operation.send_buf = buffer.data();
  call.operation.recv_buf = buffer.data() + 0;
  call.operation.send_counts = call.operation.recv_counts = counts.data();
  call.operation.send_displs = to.data();
  call.operation.recv_displs = from.data();
  expect_accepted(0, call);
  const std::vector<std::uint64_t> adjacent_displs{2, 12, 20, 28};
  call.operation.recv_displs = adjacent_displs.data();
  expect_refused(0, call, "overlap");
}

TEST_F(validate_test, rejects_streams_on_the_host_platform) {
  for_each([&](const row&, int rank, test_call& call) {
    call.operation.stream = &call;
    expect_refused(rank, call, "stream = ");
  });
}

TEST_F(validate_test, accepts_messages_to_self_only_in_groups) {
  for (const isthmus_collective collective : {ISTHMUS_SEND, ISTHMUS_RECV}) {
    test_call call(test::rows()[collective], root, size, root);
    expect_refused(root, call, "peer = 1 is this rank itself", ISTHMUS_ERROR_INVALID_USAGE);
  }
  test_call send(test::rows()[ISTHMUS_SEND], root, size, root),
      recv(test::rows()[ISTHMUS_RECV], root, size, root);
  ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_enqueue(m_ranks[root], &send.operation), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_enqueue(m_ranks[root], &recv.operation), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
}

TEST_F(validate_test, rejects_null_operation) {
  EXPECT_EQ(isthmus_enqueue(m_ranks[0], nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(test::last_error().message).find("operation is NULL"), std::string::npos);
}

TEST_F(validate_test, named_functions_fill_the_descriptor) {
  float a[64], b[64];
  const std::uint64_t counts[size] = {2, 3, 4, 5}, displs[size] = {0, 10, 20, 30};
  void* const send = a;
  void* const recv = b;
  standin::reset({});
  isthmus_communicator rank = m_ranks[2];
  EXPECT_EQ(isthmus_broadcast(send, recv, 7, ISTHMUS_INT8, 1, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_reduce(send, recv, 7, ISTHMUS_INT16, ISTHMUS_MAX, 2, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_allreduce(send, recv, 7, ISTHMUS_INT32, ISTHMUS_MIN, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_reduce_scatter(send, recv, 7, ISTHMUS_INT32, ISTHMUS_AVG, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_allgather(send, recv, 7, ISTHMUS_FLOAT16, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_allgatherv(send, 4, recv, counts, displs, ISTHMUS_FLOAT32, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_gather(send, recv, 7, ISTHMUS_FLOAT32, 3, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_gatherv(send, 4, recv, counts, displs, ISTHMUS_FLOAT32, 2, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_scatter(send, recv, 7, ISTHMUS_FLOAT32, 0, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_scatterv(send, counts, displs, recv, 4, ISTHMUS_FLOAT32, 2, rank, nullptr),
            ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_alltoall(send, recv, 7, ISTHMUS_FLOAT32, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_alltoallv(send, counts, displs, recv, counts, displs, ISTHMUS_FLOAT32, rank, nullptr),
            ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_send(send, 7, ISTHMUS_UINT64, 3, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_recv(recv, 7, ISTHMUS_UINT64, 0, rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(isthmus_barrier(rank, nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(
      isthmus_reduce_scatterv(send, counts, displs, recv, 4, ISTHMUS_FLOAT32, ISTHMUS_PROD, rank, nullptr),
      ISTHMUS_SUCCESS);

  const auto enqueued = standin::records(standin::event::enqueue);
  ASSERT_EQ(enqueued.size(), static_cast<std::size_t>(ISTHMUS_COLLECTIVE_COUNT));
  const int roots[] = {1, 2, 0, 0, 0, 0, 3, 2, 0, 2, 0, 0, 3, 0, 0, 0};
  for (std::size_t i = 0; i < enqueued.size(); ++i) {
    const auto& enqueued_operation = enqueued[i].operations.at(0);
    SCOPED_TRACE(isthmus_collective_name(enqueued_operation.collective));
    EXPECT_EQ(enqueued_operation.collective, static_cast<isthmus_collective>(i));
    EXPECT_EQ(enqueued_operation.root, roots[i]);
    const row& expected = test::rows()[i];
    if (expected.sends(enqueued_operation.root == 2)) {
      EXPECT_EQ(enqueued_operation.send_buf, send);
    }
    if (expected.receives(enqueued_operation.root == 2)) {
      EXPECT_EQ(enqueued_operation.recv_buf, recv);
    }
    if (expected.send_extent == "COUNTS") {
      EXPECT_EQ(enqueued_operation.send_displs, displs);
    }
    if (expected.recv_extent == "COUNTS") {
      EXPECT_EQ(enqueued_operation.recv_displs, displs);
    }
  }
  EXPECT_EQ(enqueued[ISTHMUS_REDUCE].operations[0].op, ISTHMUS_MAX);
  EXPECT_EQ(enqueued[ISTHMUS_REDUCE_SCATTER].operations[0].op, ISTHMUS_AVG);
  EXPECT_EQ(enqueued[ISTHMUS_REDUCE_SCATTERV].operations[0].op, ISTHMUS_PROD);
  EXPECT_EQ(enqueued[ISTHMUS_BROADCAST].operations[0].datatype, ISTHMUS_INT8);
  EXPECT_EQ(enqueued[ISTHMUS_ALLGATHERV].operations[0].count, 4u);
}

}  // namespace
