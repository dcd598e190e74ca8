// Real counts above INT_MAX: 2^31 + 3 elements of one byte on two ranks, about 5 GiB of memory.
#include <sys/sysinfo.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <isthmus/mpi.hpp>
#include <memory>
#include <vector>

#include "mpi/all_ranks.hpp"

namespace {

constexpr std::uint64_t count = static_cast<std::uint64_t>(INT_MAX) + 4;

// A pattern with a prime period, so that shifted or repeated chunks differ. Whole periods are copied and
// compared at memory speed.
constexpr std::uint64_t period = 251, chunk = period * 4096;

signed char element(std::uint64_t index, int rank) {
  return static_cast<signed char>(index % period % 60 + static_cast<std::uint64_t>(rank));
}

bool has_memory(std::uint64_t bytes) {
  struct sysinfo info{};
  return sysinfo(&info) == 0 && (info.freeram + info.bufferram) * info.mem_unit > bytes + bytes / 2;
}

class large_count_test : public ::testing::Test {
 protected:
  void SetUp() override {
    // One rank decides for all, because the amount of free memory changes meanwhile.
    int has_enough_memory = has_memory(static_cast<std::uint64_t>(mpi_test::size()) * 2 * count);
    MPI_Bcast(&has_enough_memory, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (!has_enough_memory)
      GTEST_SKIP() << "needs " << mpi_test::size() * 2 * count / (1 << 20) << " MiB of free memory";
    m_table = isthmus::mpi::table(MPI_COMM_WORLD);
    m_buffer.reset(new signed char[count]);
  }

  isthmus_operation operation(isthmus_collective collective) {
    isthmus_operation result{};
    result.collective = collective;
    result.datatype = ISTHMUS_INT8;
    result.op = ISTHMUS_SUM;
    result.count = count;
    result.send_buf = result.recv_buf = m_buffer.get();
    return result;
  }

  void fill(int rank) {
    for (std::uint64_t i = 0; i < chunk; ++i) m_buffer[i] = element(i, rank);
    for (std::uint64_t offset = chunk; offset < count; offset += chunk)
      std::memcpy(&m_buffer[offset], m_buffer.get(), std::min(chunk, count - offset));
  }

  // `expected` must have the period of the pattern.
  template <typename Expected>
  std::optional<std::string> first_mismatch(Expected&& expected) const {
    std::vector<signed char> expected_chunk(chunk);
    for (std::uint64_t i = 0; i < chunk; ++i) expected_chunk[i] = expected(i);
    for (std::uint64_t offset = 0; offset < count; offset += chunk) {
      const std::uint64_t length = std::min(chunk, count - offset);
      if (std::memcmp(&m_buffer[offset], expected_chunk.data(), length) == 0) continue;
      const auto mismatch = std::mismatch(expected_chunk.begin(), expected_chunk.end(), &m_buffer[offset]);
      return "element " +
             std::to_string(offset + static_cast<std::uint64_t>(mismatch.first - expected_chunk.begin())) +
             " is " + std::to_string(*mismatch.second) + ", not " + std::to_string(*mismatch.first);
    }
    return std::nullopt;
  }

  isthmus_mpi_table m_table{};
  std::unique_ptr<signed char[]> m_buffer;
};

TEST_F(large_count_test, broadcast_and_allreduce_in_place) {
  fill(mpi_test::rank());
  isthmus_operation broadcast = operation(ISTHMUS_BROADCAST);
  broadcast.root = mpi_test::size() - 1;
  ASSERT_EQ(m_table.collective(m_table.comm, &broadcast), 0);
  ASSERT_EQ(
      mpi_test::first_problem(first_mismatch([&](std::uint64_t i) { return element(i, broadcast.root); })), "");

  fill(mpi_test::rank());
  const isthmus_operation allreduce = operation(ISTHMUS_ALLREDUCE);
  ASSERT_EQ(m_table.collective(m_table.comm, &allreduce), 0);
  const auto sum = [](std::uint64_t i) {
    int total = 0;
    for (int r = 0; r < mpi_test::size(); ++r) total += element(i, r);
    return static_cast<signed char>(total);
  };
  ASSERT_EQ(mpi_test::first_problem(first_mismatch(sum)), "");
}

}  // namespace
