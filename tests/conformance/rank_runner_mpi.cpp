// Runs ranks under the user's MPI.
#include <fmt/format.h>

#include <isthmus/mpi.hpp>
#include <stdexcept>

#include "rank_runner.hpp"

namespace conformance {
namespace {

class mpi_runner final : public rank_runner {
 public:
  mpi_runner() {
    MPI_Comm_rank(MPI_COMM_WORLD, &m_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &m_size);
  }
  int size() const override { return m_size; }
  int rank() const override { return m_rank; }
  const char* topology() const override { return "mpi"; }

  std::vector<rank_member> create(const isthmus_communicator_options& options) override {
    return {{m_rank, isthmus::mpi::create(MPI_COMM_WORLD, &options)}};
  }

  std::vector<std::vector<std::uint64_t>> exchange(
      const std::vector<std::vector<std::uint64_t>>& local_hashes) override {
    const int count = static_cast<int>(local_hashes.front().size());
    std::vector<int> counts(static_cast<std::size_t>(m_size));
    MPI_Allgather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD);
    std::vector<std::vector<std::uint64_t>> all;
    for (int rank = 0; rank < m_size; ++rank) {
      auto& row = all.emplace_back(static_cast<std::size_t>(counts[rank]));
      if (rank == m_rank) row = local_hashes.front();
      MPI_Bcast(row.data(), counts[rank], MPI_UINT64_T, rank, MPI_COMM_WORLD);
    }
    return all;
  }

 private:
  int m_rank = 0, m_size = 1;
};

}  // namespace

int run_in_mpi(const rank_function& run) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  int failures = 0;
  {
    mpi_runner runner;
    failures = run(runner);
  }
  int all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all;
}

}  // namespace conformance
