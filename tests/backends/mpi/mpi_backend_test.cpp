// The mpi backend and the MPI bootstrap over a real MPI, without the rest of the runtime.
#include <isthmus/isthmus.h>

#include <chrono>
#include <cmath>
#include <isthmus/mpi.hpp>
#include <numeric>
#include <thread>

#include "backends/mpi/mpi_calls.hpp"
#include "backends/mpi/standin_context.hpp"
#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "mpi/all_ranks.hpp"

namespace {

using clock_type = std::chrono::steady_clock;
using mpi_test::standin_context;

double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

isthmus_operation operation_of(isthmus_collective collective, isthmus_datatype datatype, std::uint64_t count,
                               const void* send, void* recv) {
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = datatype;
  operation.count = count;
  operation.send_buf = send;
  operation.recv_buf = recv;
  return operation;
}

class mpi_backend_test : public ::testing::Test {
 protected:
  void SetUp() override {
    m_table = isthmus::mpi::table(MPI_COMM_WORLD);
    ASSERT_EQ(m_table.comm_dup(m_table.comm, &m_comm), 0);
    m_backend = isthmus::mpi_backend();
    use(m_table);
  }
  void TearDown() override {
    m_backend->destroy(m_state);
    m_table.comm_free(m_comm);
  }

  // Creates the backend state with `table`, which a test may have changed.
  void use(const isthmus_mpi_table& table, double timeout_s = 20) {
    if (m_state != nullptr) m_backend->destroy(m_state);
    m_active_table = table;
    m_context = std::make_unique<standin_context>(&m_active_table, m_comm, timeout_s);
    ASSERT_EQ(m_backend->create(&m_context->context, &m_state), ISTHMUS_SUCCESS);
  }

  isthmus_status enqueue(const std::vector<isthmus_operation>& operations) {
    const std::vector<int> algorithms(operations.size(), ISTHMUS_ANY_ALGORITHM);
    return m_backend->enqueue(m_state, operations.data(), algorithms.data(), operations.size());
  }

  int rank() const { return m_context->context.rank; }
  int size() const { return m_context->context.size; }

  isthmus_mpi_table m_table{}, m_active_table{};
  isthmus_mpi_comm m_comm = nullptr;
  const isthmus_backend* m_backend = nullptr;
  void* m_state = nullptr;
  std::unique_ptr<standin_context> m_context;
};

TEST_F(mpi_backend_test, fulfills_the_backend_contract) {
  EXPECT_EQ(m_backend->magic, ISTHMUS_BACKEND_MAGIC);
  EXPECT_STREQ(m_backend->name, "mpi");
  EXPECT_TRUE(m_backend->capabilities & ISTHMUS_BACKEND_BLOCKING_ON_HOST);
  const isthmus_operation barrier = operation_of(ISTHMUS_BARRIER, ISTHMUS_INT8, 0, nullptr, nullptr);
  EXPECT_EQ(m_backend->supports(m_state, &barrier, ISTHMUS_ANY_ALGORITHM), nullptr);
  EXPECT_EQ(m_backend->algorithms, nullptr) << "MPI selects its own algorithms";
  EXPECT_STREQ(m_backend->version(m_state), m_table.library);
}

TEST_F(mpi_backend_test, is_unsupported_without_mpi) {
  standin_context context(nullptr, nullptr, 1);
  void* state = &context;
  EXPECT_EQ(m_backend->create(&context.context, &state), ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_EQ(state, nullptr);
  EXPECT_NE(context.hint.find("isthmus::mpi::create"), std::string::npos);
}

// Ranks contribute 1, 2, ..., n. The mean (n + 1) / 2 is exact in every floating-point type used here.
TEST_F(mpi_backend_test, averages_floats) {
  const float own_value = static_cast<float>(rank() + 1);
  float mean = -1;
  isthmus_operation operation = operation_of(ISTHMUS_ALLREDUCE, ISTHMUS_FLOAT32, 1, &own_value, &mean);
  operation.op = ISTHMUS_AVG;
  ASSERT_EQ(enqueue({operation}), ISTHMUS_SUCCESS);
  EXPECT_EQ(mean, static_cast<float>(size() + 1) / 2);
}

TEST_F(mpi_backend_test, averages_half_and_brain_floats) {
  // 1, 2, 3, 4 and the means 1, 1.5, 2, 2.5 as bit patterns, written by hand from the formats.
  const std::uint16_t float16_values[] = {0x3c00, 0x4000, 0x4200, 0x4400},
                      float16_means[] = {0x3c00, 0x3e00, 0x4000, 0x4100};
  const std::uint16_t bfloat16_values[] = {0x3f80, 0x4000, 0x4040, 0x4080},
                      bfloat16_means[] = {0x3f80, 0x3fc0, 0x4000, 0x4020};
  ASSERT_LE(size(), 4);
  std::uint16_t result = 0xffff;
  isthmus_operation operation =
      operation_of(ISTHMUS_ALLREDUCE, ISTHMUS_FLOAT16, 1, &float16_values[rank()], &result);
  operation.op = ISTHMUS_AVG;
  ASSERT_EQ(enqueue({operation}), ISTHMUS_SUCCESS);
  EXPECT_EQ(result, float16_means[size() - 1]);
  operation.datatype = ISTHMUS_BFLOAT16;
  operation.send_buf = &bfloat16_values[rank()];
  ASSERT_EQ(enqueue({operation}), ISTHMUS_SUCCESS);
  EXPECT_EQ(result, bfloat16_means[size() - 1]);
}

TEST_F(mpi_backend_test, averages_integers_toward_zero) {
  const std::int32_t own_value = rank() == 0 ? -7 : 0;
  std::int32_t mean = 99;
  isthmus_operation operation = operation_of(ISTHMUS_ALLREDUCE, ISTHMUS_INT32, 1, &own_value, &mean);
  operation.op = ISTHMUS_AVG;
  ASSERT_EQ(enqueue({operation}), ISTHMUS_SUCCESS);
  EXPECT_EQ(mean, -7 / size());
}

TEST_F(mpi_backend_test, reduces_the_average_on_the_root_only) {
  const std::uint64_t own_value = 6;
  std::uint64_t mean = 1000;
  isthmus_operation operation = operation_of(ISTHMUS_REDUCE, ISTHMUS_UINT64, 1, &own_value, &mean);
  operation.op = ISTHMUS_AVG;
  operation.root = size() - 1;
  ASSERT_EQ(enqueue({operation}), ISTHMUS_SUCCESS);
  EXPECT_EQ(mean, rank() == operation.root ? 6u : 1000u);
}

TEST_F(mpi_backend_test, zero_counts_succeed_with_null_buffers) {
  for (const isthmus_collective collective : {ISTHMUS_BROADCAST, ISTHMUS_ALLREDUCE, ISTHMUS_REDUCE_SCATTER,
                                              ISTHMUS_ALLGATHER, ISTHMUS_ALLTOALL, ISTHMUS_SEND})
    EXPECT_EQ(enqueue({operation_of(collective, ISTHMUS_FLOAT16, 0, nullptr, nullptr)}), ISTHMUS_SUCCESS);
}

// Every rank sends to every rank, itself included, with a collective in the middle of the batch.
TEST_F(mpi_backend_test, group_operations_progress_together) {
  constexpr std::uint64_t count = 70000;  // beyond any eager limit
  std::vector<std::vector<int>> send_buffers(static_cast<std::size_t>(size())),
      recv_buffers(send_buffers.size());
  std::vector<isthmus_operation> batch;
  for (int peer = 0; peer < size(); ++peer) {
    auto& out = send_buffers[static_cast<std::size_t>(peer)];
    auto& in = recv_buffers[static_cast<std::size_t>(peer)];
    out.resize(count), in.assign(count, -1);
    std::iota(out.begin(), out.end(), 1000 * rank() + peer);
    batch.push_back(operation_of(ISTHMUS_SEND, ISTHMUS_INT32, count, out.data(), nullptr));
    batch.back().root = peer;
    batch.push_back(operation_of(ISTHMUS_RECV, ISTHMUS_INT32, count, nullptr, in.data()));
    batch.back().root = peer;
  }
  const int one_value = 1;
  int ranks = 0;
  batch.insert(batch.begin() + 1, operation_of(ISTHMUS_ALLREDUCE, ISTHMUS_INT32, 1, &one_value, &ranks));
  ASSERT_EQ(enqueue(batch), ISTHMUS_SUCCESS) << m_context->message;
  EXPECT_EQ(ranks, size());
  for (int peer = 0; peer < size(); ++peer)
    for (std::uint64_t i = 0; i < count; i += 997)
      ASSERT_EQ(recv_buffers[static_cast<std::size_t>(peer)][i], 1000 * peer + rank() + static_cast<int>(i));
}

TEST_F(mpi_backend_test, native_failures_keep_code_and_text) {
  float value = 1, result = 0;
  isthmus_operation operation = operation_of(ISTHMUS_BROADCAST, ISTHMUS_FLOAT32, 1, &value, &result);
  operation.root = size() + 5;  // the runtime refuses this; here MPI must
  ASSERT_EQ(enqueue({operation}), ISTHMUS_ERROR_BACKEND);
  EXPECT_NE(m_context->native_code, 0);
  int error_class = 0;
  MPI_Error_class(static_cast<int>(m_context->native_code), &error_class);
  EXPECT_EQ(error_class, MPI_ERR_ROOT);
  EXPECT_NE(m_context->message.find("broadcast failed in"), std::string::npos) << m_context->message;
  EXPECT_GT(m_context->message.size(),
            std::string("broadcast failed in : ").size() + std::strlen(m_table.library));
}

TEST_F(mpi_backend_test, unmatched_receive_times_out) {
  use(m_table, 0.2);
  int untouched = 0;
  isthmus_operation operation = operation_of(ISTHMUS_RECV, ISTHMUS_INT32, 1, nullptr, &untouched);
  operation.root = rank();
  const auto start = clock_type::now();
  EXPECT_EQ(enqueue({operation}), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_LT(seconds_since(start), 10);
  EXPECT_NE(m_context->message.find("did not send"), std::string::npos) << m_context->message;

  // The receive was canceled: a late message is not written to its buffer and matches the next receive.
  const int late_value = 1;
  int received = 0;
  use(m_table);
  isthmus_operation send = operation_of(ISTHMUS_SEND, ISTHMUS_INT32, 1, &late_value, nullptr);
  send.root = rank();
  operation.recv_buf = &received;
  EXPECT_EQ(enqueue({send, operation}), ISTHMUS_SUCCESS);
  EXPECT_EQ(untouched, 0);
  EXPECT_EQ(received, 1);
}

// A stand-in for ULFM: only a revocation ends the collective.
std::atomic<int> revocations{0};

TEST_F(mpi_backend_test, abort_revokes_instead_of_ending_the_job) {
  revocations = 0;
  isthmus_mpi_table table = m_table;
  table.thread_level = 3;
  table.collective = [](isthmus_mpi_comm, const isthmus_operation*) {
    while (revocations == 0) std::this_thread::yield();
    return static_cast<int>(MPI_ERR_OTHER);
  };
  table.comm_revoke = [](isthmus_mpi_comm) {
    ++revocations;
    return 0;
  };
  table.comm_abort = [](isthmus_mpi_comm, int) -> int { std::abort(); };
  use(table);
  int data = 1;
  std::thread second_thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    m_backend->abort(m_state);
  });
  EXPECT_EQ(enqueue({operation_of(ISTHMUS_ALLREDUCE, ISTHMUS_INT32, 1, &data, &data)}), ISTHMUS_ERROR_BACKEND);
  second_thread.join();
  EXPECT_EQ(revocations, 1);
  m_backend->abort(m_state);  // MPI failed on this rank: the other ranks may be blocked in it
  EXPECT_EQ(revocations, 2);
}

TEST_F(mpi_backend_test, abort_ends_a_waiting_receive) {
  int untouched = 0;
  isthmus_operation operation = operation_of(ISTHMUS_RECV, ISTHMUS_INT32, 1, nullptr, &untouched);
  operation.root = rank();
  std::thread second_thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    m_context->is_aborted = 1;
    m_backend->abort(m_state);  // not inside a collective: must not end the job
  });
  const auto start = clock_type::now();
  EXPECT_EQ(enqueue({operation}), ISTHMUS_ERROR_ABORTED);
  EXPECT_LT(seconds_since(start), 10);
  second_thread.join();
  EXPECT_EQ(untouched, 0);
}

// The thread level comes from the table, so a test can change it without restarting MPI.
TEST_F(mpi_backend_test, funneled_allows_the_main_thread_only) {
  isthmus_mpi_table funneled = m_table;
  funneled.thread_level = 1;
  use(funneled);
  const isthmus_operation barrier = operation_of(ISTHMUS_BARRIER, ISTHMUS_INT8, 0, nullptr, nullptr);
  EXPECT_EQ(enqueue({barrier}), ISTHMUS_SUCCESS);
  isthmus_status other_thread_status = ISTHMUS_SUCCESS;
  std::thread([&] { other_thread_status = enqueue({barrier}); }).join();
  EXPECT_EQ(other_thread_status, ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_NE(m_context->message.find("MPI_THREAD_SERIALIZED"), std::string::npos) << m_context->message;
  EXPECT_NE(m_context->hint.find("MPI_Init_thread"), std::string::npos);

  isthmus_mpi_table serialized = m_table;
  serialized.thread_level = 2;
  use(serialized);
  std::thread([&] { other_thread_status = enqueue({barrier}); }).join();
  EXPECT_EQ(other_thread_status, ISTHMUS_SUCCESS);
}

TEST_F(mpi_backend_test, serialized_refuses_concurrent_threads) {
  isthmus_mpi_table serialized = m_table;
  serialized.thread_level = 2;
  use(serialized);
  int untouched = 0;
  isthmus_operation receive = operation_of(ISTHMUS_RECV, ISTHMUS_INT32, 1, nullptr, &untouched);
  receive.root = rank();
  isthmus_status wait_status = ISTHMUS_SUCCESS;
  // Either thread may get the error; this one repeats until it is inside MPI.
  std::thread wait_thread([&] {
    do wait_status = enqueue({receive});
    while (wait_status == ISTHMUS_ERROR_INVALID_USAGE);
  });
  standin_context second(&m_active_table, m_comm, 20);
  void* state = nullptr;
  ASSERT_EQ(m_backend->create(&second.context, &state), ISTHMUS_SUCCESS);
  const isthmus_operation empty_send = operation_of(ISTHMUS_SEND, ISTHMUS_INT32, 0, nullptr, nullptr);
  const int algorithm = ISTHMUS_ANY_ALGORITHM;
  const auto start = clock_type::now();
  isthmus_status status = ISTHMUS_SUCCESS;
  while (status == ISTHMUS_SUCCESS && seconds_since(start) < 10)
    status = m_backend->enqueue(state, &empty_send, &algorithm, 1);
  EXPECT_EQ(status, ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_NE(second.message.find("another thread"), std::string::npos) << second.message;
  m_context->is_aborted = 1;
  wait_thread.join();
  EXPECT_EQ(wait_status, ISTHMUS_ERROR_ABORTED);
  m_backend->destroy(state);
}

// ---- bootstrap --------------------------------------------------------------------------------------

TEST(mpi_bootstrap_test, gathers_and_splits) {
  const isthmus_mpi_table table = isthmus::mpi::table(MPI_COMM_WORLD);
  const auto ranks = isthmus::make_mpi_bootstrap(&table, 20);
  EXPECT_EQ(ranks->size(), mpi_test::size());
  EXPECT_EQ(ranks->rank(), mpi_test::rank());
  EXPECT_EQ(ranks->mpi_table(), &table);
  EXPECT_NE(ranks->mpi_comm(), nullptr);
  EXPECT_NE(ranks->mpi_comm(), table.comm);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100000}}) {
    const std::vector<std::byte> own_value(bytes, static_cast<std::byte>(ranks->rank() + 1));
    std::vector<std::byte> all(bytes * static_cast<std::size_t>(ranks->size()));
    ranks->allgather(own_value, all);
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<std::byte>(i / bytes + 1));
  }
  const auto no_subset = ranks->split(-1, 0);
  EXPECT_EQ(no_subset, nullptr);
  const auto reversed = ranks->split(0, -ranks->rank());
  ASSERT_NE(reversed, nullptr);
  EXPECT_EQ(reversed->rank(), ranks->size() - 1 - ranks->rank());
}

// Rank 0 does not take part; the others must report it within the timeout.
TEST(mpi_bootstrap_test, names_the_missing_ranks) {
  if (mpi_test::size() < 2) GTEST_SKIP() << "needs 2 ranks";
  const isthmus_mpi_table table = isthmus::mpi::table(MPI_COMM_WORLD);
  const auto ranks = isthmus::make_mpi_bootstrap(&table, 0.3);
  const std::byte own_value{1};
  std::vector<std::byte> all(static_cast<std::size_t>(ranks->size()));
  if (ranks->rank() != 0) {
    try {
      ranks->allgather({&own_value, 1}, all);
      ADD_FAILURE() << "rank 0 did not take part";
    } catch (const isthmus::error& failure) {
      EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_TIMEOUT);
      EXPECT_EQ(failure.info().failed_ranks().size(), 1U);
      EXPECT_EQ(failure.info().failed_ranks().front(), 0);
      EXPECT_NE(std::string(failure.what()).find("no message from rank 0"), std::string::npos)
          << failure.what();
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (ranks->rank() == 0) ranks->allgather({&own_value, 1}, all);  // completes the exchange for all ranks
}

// A stand-in for ULFM's function; no rank has failed.
TEST(mpi_bootstrap_test, shrinks_with_ulfm) {
  isthmus_mpi_table table = isthmus::mpi::table(MPI_COMM_WORLD);
  table.comm_shrink = isthmus::mpi::detail::comm_dup;
  const auto ranks = isthmus::make_mpi_bootstrap(&table, 20);
  ranks->cancel();  // as an abort does
  const isthmus::survivors all = ranks->shrink(0);
  ASSERT_EQ(all.control->size(), ranks->size());
  EXPECT_EQ(all.control->rank(), ranks->rank());
  for (int rank = 0; rank < ranks->size(); ++rank) EXPECT_EQ(all.ranks[static_cast<std::size_t>(rank)], rank);
}

TEST(mpi_bootstrap_test, shrink_without_ulfm_is_unsupported) {
  isthmus_mpi_table table = isthmus::mpi::table(MPI_COMM_WORLD);
  table.struct_bytes = ISTHMUS_MPI_TABLE_MIN_BYTES;  // of a program built with an older header
  const auto ranks = isthmus::make_mpi_bootstrap(&table, 20);
  try {
    ranks->shrink(0);
    ADD_FAILURE() << "comm_shrink was read beyond the end of the table";
  } catch (const isthmus::error& failure) {
    EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(failure.what()).find("MPIX_Comm_shrink"), std::string::npos) << failure.what();
  }
}

TEST(mpi_bootstrap_test, refuses_a_foreign_table) {
  isthmus_mpi_table table = isthmus::mpi::table(MPI_COMM_WORLD);
  table.magic = 7;
  EXPECT_THROW(isthmus::make_mpi_bootstrap(&table, 1), isthmus::error);
}

TEST(mpi_bootstrap_test, cancel_ends_a_wait) {
  const isthmus_mpi_table table = isthmus::mpi::table(MPI_COMM_SELF);
  const auto bootstrap = isthmus::make_mpi_bootstrap(&table, 20);
  bootstrap->cancel();
  const std::byte own_value{3};
  std::byte all{0};
  bootstrap->allgather({&own_value, 1}, {&all, 1});  // no other rank to wait for
  EXPECT_EQ(all, own_value);
}

}  // namespace
