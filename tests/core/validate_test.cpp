// Every rule of THE TABLE, for every collective and every rank's view of it. The stand-in proves that nothing
// reaches a backend and no buffer changes when a rule is broken.
#include <functional>
#include <limits>

#include "core/test_call.hpp"
#include "core/support.hpp"

namespace {

using test::test_call;
using test::row;

constexpr int size = 4, root = 1;

class validate_test : public testing::Test {
 protected:
  validate_test() : m_ranks((standin::reset(), size), standin::configuration()) {}
  void SetUp() override { ASSERT_EQ(m_ranks.status(), ISTHMUS_SUCCESS) << m_ranks.message(); }

  // Calls `check(row, rank, made)` for every collective and rank, root being rank 1 (the peer rank 1 of
  // rank 2 and so on: rank 1 itself is skipped for send and recv, which need a group there).
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
    const auto before = standin::records(standin::event::enqueue).size();
    EXPECT_EQ(isthmus_enqueue(m_ranks[rank], &call.operation), ISTHMUS_SUCCESS) << test::last_error().message;
    EXPECT_EQ(standin::records(standin::event::enqueue).size(), before + 1);
  }

  void expect_refused(int rank, const test_call& call, const std::string& argument,
                      isthmus_status status = ISTHMUS_ERROR_INVALID_ARGUMENT) {
    const auto before = standin::records(standin::event::enqueue).size();
    EXPECT_EQ(isthmus_enqueue(m_ranks[rank], &call.operation), status);
    const auto error = test::last_error();
    EXPECT_NE(std::string(error.message).find(argument), std::string::npos) << error.message;
    EXPECT_STRNE(error.hint, "");
    EXPECT_EQ(error.rank, rank);
    EXPECT_EQ(standin::records(standin::event::enqueue).size(), before);
    EXPECT_TRUE(call.is_untouched());
    EXPECT_EQ(isthmus_communicator_async_error(m_ranks[rank]), ISTHMUS_SUCCESS)
        << "a refused call must not poison";
  }

  test::ranks m_ranks;
};

TEST_F(validate_test, valid_calls_pass) {
  for_each([&](const row&, int rank, test_call& call) { expect_accepted(rank, call); });
}

TEST_F(validate_test, collective_out_of_range) {
  for (const int value : {-1, static_cast<int>(ISTHMUS_COLLECTIVE_COUNT), 1000}) {
    test_call call(test::rows()[ISTHMUS_ALLREDUCE], 0, size, root);
    call.operation.collective = static_cast<isthmus_collective>(value);
    const auto before = standin::records(standin::event::enqueue).size();
    EXPECT_EQ(isthmus_enqueue(m_ranks[0], &call.operation), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(test::last_error().message).find("collective = " + std::to_string(value)),
              std::string::npos);
    EXPECT_EQ(standin::records(standin::event::enqueue).size(), before);
  }
}

TEST_F(validate_test, datatype_out_of_range) {
  for_each([&](const row&, int rank, test_call& call) {
    for (const int value : {-1, static_cast<int>(ISTHMUS_DATATYPE_COUNT)}) {
      call.operation.datatype = static_cast<isthmus_datatype>(value);
      expect_refused(rank, call, "datatype = " + std::to_string(value));
    }
  });
}

TEST_F(validate_test, op_out_of_range_where_it_counts) {
  for_each([&](const row& each, int rank, test_call& call) {
    call.operation.op = ISTHMUS_REDUCTION_OP_COUNT;
    if (each.reduces)
      expect_refused(rank, call, "op = " + std::to_string(ISTHMUS_REDUCTION_OP_COUNT));
    else
      expect_accepted(rank, call);
  });
}

TEST_F(validate_test, root_out_of_range_where_it_counts) {
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

TEST_F(validate_test, null_buffers_where_they_are_used) {
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

TEST_F(validate_test, null_buffers_are_fine_when_nothing_is_in_them) {
  for_each([&](const row&, int rank, test_call& call) {
    call.operation.count = 0;
    std::fill(call.counts().begin(), call.counts().end(), 0);
    call.operation.send_buf = nullptr;
    call.operation.recv_buf = nullptr;
    expect_accepted(rank, call);
  });
}

TEST_F(validate_test, garbage_where_a_buffer_is_not_used) {
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
              ISTHMUS_SUCCESS);  // a group copies the arrays that are used, and only those
    EXPECT_EQ(isthmus_enqueue(m_ranks[rank], &call.operation), ISTHMUS_SUCCESS);
    EXPECT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << test::last_error().message;
  });
}

TEST_F(validate_test, counts_that_do_not_fit) {
  for_each([&](const row& each, int rank, test_call& call) {
    if (each.collective == ISTHMUS_BARRIER || each.collective == ISTHMUS_ALLTOALLV) return;
    call.operation.datatype = ISTHMUS_FLOAT64;
    for (const std::uint64_t value : {std::uint64_t{1} << 61, std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
      call.operation.count = value;
      // Irregular collectives also say it twice; whichever rule is noticed first, the call is refused.
      expect_refused(rank, call, std::string(each.name));
    }
  });
}

TEST_F(validate_test, displacements_that_do_not_fit) {
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

TEST_F(validate_test, arrays_that_are_missing) {
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

TEST_F(validate_test, own_block_described_twice) {
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

TEST_F(validate_test, receive_blocks_that_overlap) {
  for_each([&](const row& each, int rank, test_call& call) {
    if (!call.receives() || each.recv_extent != "COUNTS") return;
    std::swap(call.displs()[0],
              call.displs()[3]);  // out of order, and block 3 now runs into block 0's neighbour
    call.displs()[3] = call.displs()[1] + 1;
    expect_refused(rank, call, "two receive blocks overlap");
  });
}

TEST_F(validate_test, blocks_in_any_order) {
  for_each([&](const row& each, int rank, test_call& call) {
    if (!call.receives() || each.recv_extent != "COUNTS") return;
    call.displs() = {30, 20, 10, 0};
    expect_accepted(rank, call);
  });
}

TEST_F(validate_test, in_place_as_the_table_says) {
  for_each([&](const row& each, int rank, test_call& call) {
    if (!call.sends() || !call.receives() || each.in_place == "NEVER") return;
    call.make_in_place();
    expect_accepted(rank, call);
  });
}

TEST_F(validate_test, any_other_overlap) {
  for_each([&](const row&, int rank, test_call& call) {
    if (!call.sends() || !call.receives()) return;
    call.make_in_place();
    const auto* shifted = static_cast<const float*>(call.operation.send_buf) + 1;
    call.operation.send_buf = shifted;
    expect_refused(rank, call, "overlap");
  });
}

TEST_F(validate_test, irregular_blocks_may_interleave) {
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
  const std::vector<std::uint64_t> touching{2, 12, 20, 28};
  call.operation.recv_displs = touching.data();
  expect_refused(0, call, "overlap");
}

TEST_F(validate_test, streams_on_the_host) {
  for_each([&](const row&, int rank, test_call& call) {
    call.operation.stream = &call;
    expect_refused(rank, call, "stream = ");
  });
}

TEST_F(validate_test, a_rank_reaches_itself_only_in_a_group) {
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

TEST_F(validate_test, operation_is_null) {
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
