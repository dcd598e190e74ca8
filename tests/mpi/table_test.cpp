// Direct calls of the function table of mpi.hpp: every collective, datatype, operation and in-place form
// against the oracle. Built a second time with a tiny ISTHMUS_MPI_COUNT_LIMIT, so that larger counts are split
// or described by a derived type.
#include <atomic>
#include <climits>
#include <cmath>
#include <isthmus/mpi.hpp>
#include <thread>

#include "conformance/rank_buffers.hpp"
#include "conformance/test_case.hpp"
#include "mpi/all_ranks.hpp"

namespace {

std::atomic<int> aborts = 0;
std::atomic<bool> abort_blocks = false, aborts_world = true;

}  // namespace

// Replaces MPI's function, which would end these ranks.
extern "C" int MPI_Abort(MPI_Comm comm, int) {
  ++aborts;
  if (comm != MPI_COMM_WORLD) aborts_world = false;
  while (abort_blocks) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return MPI_SUCCESS;
}

namespace {

using conformance::test_case;
using mpi_test::first_problem;

class table_test : public ::testing::Test {
 protected:
  void SetUp() override {
    m_table = isthmus::mpi::table(MPI_COMM_WORLD);
    ASSERT_EQ(m_table.comm_dup(m_table.comm, &m_comm), 0);
  }
  void TearDown() override { EXPECT_EQ(m_table.comm_free(m_comm), 0); }

  std::string text_of(int code) const {
    char text[512] = "";
    m_table.error_string(code, text, sizeof text);
    return text;
  }

  isthmus_operation operation_of(const test_case& test, const oracle::operation_shape& shape,
                                 const conformance::rank_buffers& buffers) const {
    const int rank = mpi_test::rank();
    isthmus_operation operation{};
    operation.collective = test.collective;
    operation.datatype = test.datatype;
    operation.op = test.op;
    operation.root = shape.root;
    operation.count = shape.count;
    operation.send_buf = buffers.send_buf();
    operation.recv_buf = buffers.recv_buf();
    if (!shape.recv_layouts.empty()) {
      const oracle::block_layout& parts = shape.recv_layouts[static_cast<std::size_t>(rank)];
      operation.recv_counts = parts.counts.data(), operation.recv_displs = parts.displs.data();
    }
    if (!shape.send_layouts.empty()) {
      const oracle::block_layout& parts = shape.send_layouts[static_cast<std::size_t>(rank)];
      operation.send_counts = parts.counts.data(), operation.send_displs = parts.displs.data();
    }
    const auto root = static_cast<std::size_t>(shape.root), me = static_cast<std::size_t>(rank);
    if (test.collective == ISTHMUS_ALLGATHERV) operation.count = shape.recv_layouts[me].counts[me];
    if (test.collective == ISTHMUS_GATHERV) operation.count = shape.recv_layouts[root].counts[me];
    if (test.collective == ISTHMUS_REDUCE_SCATTERV) operation.count = shape.send_layouts[me].counts[me];
    if (test.collective == ISTHMUS_SCATTERV) operation.count = shape.send_layouts[root].counts[me];
    return operation;
  }

  int ring(isthmus_operation operation) {
    const int n = mpi_test::size(), distance = operation.root;
    isthmus_operation receive = operation;
    operation.root = (mpi_test::rank() + distance) % n;
    receive.collective = ISTHMUS_RECV;
    receive.root = (mpi_test::rank() + n - distance % n) % n;
    void* requests[2] = {};
    int code = m_table.start(m_comm, &receive, &requests[0]);
    if (code == 0) code = m_table.start(m_comm, &operation, &requests[1]);
    for (void*& request : requests)
      for (int done = 0; code == 0 && request != nullptr && !done;) code = m_table.test(&request, &done);
    return code;
  }

  void run(const test_case& test) {
    const oracle::operation_shape shape = conformance::shape_of(test, mpi_test::size());
    std::vector<std::byte> memory(conformance::rank_buffers::required_bytes(test, shape));
    const conformance::rank_buffers buffers(test, shape, mpi_test::rank(), memory);
    const isthmus_operation operation = operation_of(test, shape, buffers);
    const int code = test.collective == ISTHMUS_SEND ? ring(operation) : m_table.collective(m_comm, &operation);
    std::optional<std::string> problem;
    if (code != 0) problem = text_of(code);
    if (!problem) problem = buffers.find_error(true, true, /*steps_in_type*/ true);
    if (problem && !m_problem) m_problem = conformance::to_string(test) + ": " + *problem;
  }

  // Counts and displacements of the v-collectives cannot be split.
  static bool fits_native_counts(const test_case& test) {
    const bool v_collective = test.collective == ISTHMUS_ALLGATHERV || test.collective == ISTHMUS_GATHERV ||
                              test.collective == ISTHMUS_SCATTERV || test.collective == ISTHMUS_ALLTOALLV;
    return !v_collective || isthmus::mpi::detail::native::count_limit >= INT_MAX;
  }

  // Problems are checked once at the end: if one rank stopped earlier, the others would hang in the next call.
  void run_all(std::uint64_t count, const std::vector<isthmus_datatype>& datatypes, bool special) {
    std::uint64_t seed = 1;
    for (const isthmus_collective collective : conformance::collectives())
      for (const isthmus_datatype datatype : datatypes)
        for (int op = 0; op < (conformance::reduces(collective) ? ISTHMUS_AVG : 1); ++op)
          for (int in_place = 0; in_place <= (conformance::can_be_in_place(collective) ? 1 : 0); ++in_place) {
            test_case test{collective, datatype, static_cast<isthmus_reduction_op>(op),
                           count,      0,        in_place == 1};
            test.root = static_cast<int>(++seed) % mpi_test::size();
            test.special = special && conformance::reduces(collective);
            test.seed = seed;
            if (fits_native_counts(test)) run(test);
          }
    EXPECT_EQ(first_problem(m_problem), "");
  }

  static std::vector<isthmus_datatype> all_datatypes() {
    std::vector<isthmus_datatype> all;
    for (int i = 0; i < ISTHMUS_DATATYPE_COUNT; ++i) all.push_back(static_cast<isthmus_datatype>(i));
    return all;
  }

  isthmus_mpi_table m_table{};
  isthmus_mpi_comm m_comm = nullptr;
  std::optional<std::string> m_problem;
};

TEST_F(table_test, one_element) { run_all(1, all_datatypes(), false); }
TEST_F(table_test, some_elements) { run_all(17, all_datatypes(), false); }
TEST_F(table_test, more_elements) {
  const bool is_split = isthmus::mpi::detail::native::count_limit < 1031;  // each part is a call or a block
  run_all(is_split ? 61 : 1031,
          {ISTHMUS_INT8, ISTHMUS_UINT64, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT32, ISTHMUS_FLOAT8_E4M3}, false);
}
// Without float8, which saturates during the reduction if an input is the largest value (see mpi.hpp).
TEST_F(table_test, not_a_number_and_infinity) {
  run_all(33, {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT32, ISTHMUS_FLOAT64}, true);
}

// float32 min and max must return NaN on every rank, wherever the NaN is. MPI_MIN and MPI_MAX do
// not guarantee this.
TEST_F(table_test, nan_reaches_all_ranks) {
  for (int root_rank = 0; root_rank < mpi_test::size(); ++root_rank)
    for (const isthmus_reduction_op op : {ISTHMUS_MIN, ISTHMUS_MAX}) {
      const float own_value = root_rank == mpi_test::rank() ? NAN : 1.0f;
      float result = 0;
      isthmus_operation operation{};
      operation.collective = ISTHMUS_ALLREDUCE;
      operation.datatype = ISTHMUS_FLOAT32;
      operation.op = op;
      operation.count = 1;
      operation.send_buf = &own_value;
      operation.recv_buf = &result;
      ASSERT_EQ(m_table.collective(m_comm, &operation), 0);
      EXPECT_TRUE(std::isnan(result)) << "NaN on rank " << root_rank;
    }
}

TEST_F(table_test, average_is_unsupported) {
  float value = 1, result = 0;
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.op = ISTHMUS_AVG;
  operation.count = 1;
  operation.send_buf = &value;
  operation.recv_buf = &result;
  const int code = m_table.collective(m_comm, &operation);
  EXPECT_NE(code, 0);
  EXPECT_NE(text_of(code), "");
}

TEST_F(table_test, counts_above_the_native_limit_are_refused) {
  const auto too_many = isthmus::mpi::detail::native::count_limit + 1;
  const std::vector<std::uint64_t> counts(static_cast<std::size_t>(mpi_test::size()), too_many);
  const std::vector<std::uint64_t> displs(counts.size(), 0);
  char element = 0;
  isthmus_operation operation{};
  operation.datatype = ISTHMUS_INT8;
  operation.send_buf = &element;
  operation.recv_buf = &element + 1;
  operation.send_counts = operation.recv_counts = counts.data();
  operation.send_displs = operation.recv_displs = displs.data();
  for (const isthmus_collective collective : {ISTHMUS_ALLGATHERV, ISTHMUS_ALLTOALLV}) {
    operation.collective = collective;
    EXPECT_EQ(m_table.collective(m_comm, &operation), MPI_ERR_COUNT);
  }
}

TEST_F(table_test, describes_the_library) {
  int level = MPI_THREAD_SINGLE, main = 0;
  MPI_Query_thread(&level);
  EXPECT_EQ(m_table.thread_level, isthmus::mpi::detail::thread_level_number(level));
  EXPECT_EQ(m_table.has_large_counts, isthmus::mpi::detail::native::large_counts);
  EXPECT_GT(std::strlen(m_table.library), 3u);
  EXPECT_EQ(std::strchr(m_table.library, '\n'), nullptr);
  EXPECT_EQ(m_table.is_main_thread(&main), 0);
  EXPECT_EQ(main, 1);
  int elsewhere = 1;
  std::thread([&] { m_table.is_main_thread(&elsewhere); }).join();
  EXPECT_EQ(elsewhere, 0);
}

TEST_F(table_test, splits_by_color_and_key) {
  const int color = mpi_test::rank() % 2 == 0 ? 5 : ISTHMUS_NO_COLOR;
  isthmus_mpi_comm part = nullptr;
  ASSERT_EQ(m_table.comm_split(m_comm, color, -mpi_test::rank(), &part), 0);
  if (color < 0) {
    EXPECT_EQ(part, nullptr);
    return;
  }
  int rank = -1, size = 0;
  EXPECT_EQ(m_table.comm_rank(part, &rank), 0);
  EXPECT_EQ(m_table.comm_size(part, &size), 0);
  EXPECT_EQ(size, (mpi_test::size() + 1) / 2);
  EXPECT_EQ(rank, size - 1 - mpi_test::rank() / 2);  // descending keys reverse the order
  EXPECT_EQ(m_table.comm_free(part), 0);
}

// Runs before the next test, because a process aborts once.
TEST_F(table_test, process_exits_if_abort_blocks) {
  if (mpi_test::rank() != 0) return;
  const pid_t child = fork();
  if (child == 0) {
    abort_blocks = true;
    m_table.comm_abort(m_comm, 3);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST_F(table_test, several_threads_abort_once) {
  std::thread other([&] { m_table.comm_abort(m_comm, 3); });
  m_table.comm_abort(m_comm, 4);
  other.join();
  EXPECT_EQ(aborts, 1);
  EXPECT_TRUE(aborts_world) << "MPICH can block in MPI_Abort of another communicator";
}

TEST_F(table_test, intercommunicators_are_rejected) {
  if (mpi_test::size() < 2) GTEST_SKIP() << "needs two ranks";
  MPI_Comm group = MPI_COMM_NULL, between_groups = MPI_COMM_NULL;
  const int color = mpi_test::rank() % 2;
  ASSERT_EQ(MPI_Comm_split(MPI_COMM_WORLD, color, mpi_test::rank(), &group), MPI_SUCCESS);
  ASSERT_EQ(MPI_Intercomm_create(group, 0, MPI_COMM_WORLD, 1 - color, /*tag*/ 0, &between_groups), MPI_SUCCESS);
  try {
    isthmus::mpi::create(between_groups);
    ADD_FAILURE() << "no exception";
  } catch (const isthmus::exception& failure) {
    EXPECT_EQ(failure.code(), ISTHMUS_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(failure.message(), "comm is an intercommunicator, must be an intracommunicator");
  }
  MPI_Comm_free(&between_groups);
  MPI_Comm_free(&group);
}

decltype(isthmus_mpi_table::start) native_start = nullptr;

// The first exchange of the last rank starts after the timeout of the others.
TEST_F(table_test, creation_timeout_names_the_late_rank) {
  if (mpi_test::size() != 3) GTEST_SKIP() << "waits for seconds: one number of ranks is enough";
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = 4;
  isthmus_mpi_table table = m_table;
  native_start = m_table.start;
  const int late_rank = mpi_test::size() - 1;
  if (mpi_test::rank() == late_rank)
    table.start = [](isthmus_mpi_comm comm, const isthmus_operation* operation, void** request) {
      static const bool is_late = (std::this_thread::sleep_for(std::chrono::seconds(7)), true);
      return is_late ? native_start(comm, operation, request) : 1;
    };
  isthmus_communicator communicator = nullptr;
  EXPECT_NE(isthmus_communicator_create_mpi(&table, &options, &communicator), ISTHMUS_SUCCESS);
  if (mpi_test::rank() != late_rank) {
    int failed_rank = -1;
    EXPECT_EQ(isthmus_last_error_ranks(&failed_rank, 1), 1u);
    EXPECT_EQ(failed_rank, late_rank);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// All ranks but the last one split their communicator.
TEST_F(table_test, timeout_names_the_missing_rank) {
  if (mpi_test::size() != 3) GTEST_SKIP() << "waits for seconds: one number of ranks is enough";
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = 4;
  isthmus_communicator communicator = nullptr, part = nullptr;
  const int missing_rank = mpi_test::size() - 1;
  ASSERT_EQ(isthmus_communicator_create_mpi(&m_table, &options, &communicator), ISTHMUS_SUCCESS);
  if (mpi_test::rank() != missing_rank) {
    EXPECT_NE(isthmus_communicator_split(communicator, 0, 0, &part), ISTHMUS_SUCCESS);
    isthmus_error_info failure;
    isthmus_last_error(&failure);
    const std::string expected = "no message from rank " + std::to_string(missing_rank);
    EXPECT_NE(std::string(failure.message).find(expected), std::string::npos) << failure.message;
    int failed_rank = -1;
    EXPECT_EQ(isthmus_last_error_ranks(&failed_rank, 1), 1u) << failure.message;
    EXPECT_EQ(failed_rank, missing_rank);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  isthmus_communicator_destroy(communicator);
}

TEST_F(table_test, persistent_tables_are_shared) {
  EXPECT_EQ(isthmus::mpi::persistent_table(MPI_COMM_WORLD), isthmus::mpi::persistent_table(MPI_COMM_WORLD));
  EXPECT_NE(isthmus::mpi::persistent_table(MPI_COMM_WORLD), isthmus::mpi::persistent_table(MPI_COMM_SELF));
  EXPECT_THROW(isthmus::mpi::table(MPI_COMM_NULL), isthmus::exception);
}

}  // namespace
