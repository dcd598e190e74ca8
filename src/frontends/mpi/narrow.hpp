// An MPI before 4 has no functions whose counts are MPI_Count. The preloaded library has their names all the
// same, and who looks for them at run time, as mpi4py does, takes them. Counts that an int holds go to MPI's
// functions, others are MPI_ERR_COUNT.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace isthmus::mpi_shim {

inline bool fits(std::int64_t value) {
  return value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max();
}

inline int too_many(MPI_Comm comm) {
  PMPI_Comm_call_errhandler(comm, MPI_ERR_COUNT);
  return MPI_ERR_COUNT;
}

// How many ranks a call has a count for: those of the other group where there is one.
inline int peers_of(MPI_Comm comm) {
  int is_inter = 0, size = 0;
  PMPI_Comm_test_inter(comm, &is_inter);
  is_inter ? PMPI_Comm_remote_size(comm, &size) : PMPI_Comm_size(comm, &size);
  return size;
}

inline bool is_root_of(int root, MPI_Comm comm) {
  int is_inter = 0, rank = 0;
  PMPI_Comm_test_inter(comm, &is_inter);
  PMPI_Comm_rank(comm, &rank);
  return is_inter ? root == MPI_ROOT : root == rank;
}

// The numbers as ints. What is NULL, or does not count on this rank, stays NULL.
class ints {
 public:
  template <typename Number>
  ints(const Number* wide, int n, bool counts = true) {
    if (wide == nullptr || !counts) return;
    m_values.reserve(static_cast<std::size_t>(n) + 1);  // so that data() is not NULL
    for (int i = 0; i < n; ++i) {
      m_fit = m_fit && fits(wide[i]);
      m_values.push_back(static_cast<int>(wide[i]));
    }
  }
  bool fit() const { return m_fit; }
  const int* data() const { return m_values.capacity() == 0 ? nullptr : m_values.data(); }

 private:
  std::vector<int> m_values;
  bool m_fit = true;
};

struct large_counts {
  using count = MPI_Count;
  using displacement = MPI_Aint;
  using type = MPI_Datatype;

  static int mpi_bcast(void* a, count n, type t, int root, MPI_Comm comm) {
    return fits(n) ? PMPI_Bcast(a, static_cast<int>(n), t, root, comm) : too_many(comm);
  }
  static int mpi_reduce(const void* a, void* b, count n, type t, MPI_Op op, int root, MPI_Comm comm) {
    return fits(n) ? PMPI_Reduce(a, b, static_cast<int>(n), t, op, root, comm) : too_many(comm);
  }
  static int mpi_allreduce(const void* a, void* b, count n, type t, MPI_Op op, MPI_Comm comm) {
    return fits(n) ? PMPI_Allreduce(a, b, static_cast<int>(n), t, op, comm) : too_many(comm);
  }
  static int mpi_reduce_scatter_block(const void* a, void* b, count n, type t, MPI_Op op, MPI_Comm comm) {
    return fits(n) ? PMPI_Reduce_scatter_block(a, b, static_cast<int>(n), t, op, comm) : too_many(comm);
  }
  static int mpi_reduce_scatter(const void* a, void* b, const count* n, type t, MPI_Op op, MPI_Comm comm) {
    int size = 0;
    PMPI_Comm_size(comm, &size);
    const ints counts(n, size);
    return counts.fit() ? PMPI_Reduce_scatter(a, b, counts.data(), t, op, comm) : too_many(comm);
  }
  static int mpi_allgather(const void* a, count n, type t, void* b, count m, type u, MPI_Comm comm) {
    return fits(n) && fits(m) ? PMPI_Allgather(a, static_cast<int>(n), t, b, static_cast<int>(m), u, comm)
                              : too_many(comm);
  }
  static int mpi_alltoall(const void* a, count n, type t, void* b, count m, type u, MPI_Comm comm) {
    return fits(n) && fits(m) ? PMPI_Alltoall(a, static_cast<int>(n), t, b, static_cast<int>(m), u, comm)
                              : too_many(comm);
  }
  static int mpi_gather(const void* a, count n, type t, void* b, count m, type u, int root, MPI_Comm comm) {
    return fits(n) && fits(m) ? PMPI_Gather(a, static_cast<int>(n), t, b, static_cast<int>(m), u, root, comm)
                              : too_many(comm);
  }
  static int mpi_scatter(const void* a, count n, type t, void* b, count m, type u, int root, MPI_Comm comm) {
    return fits(n) && fits(m) ? PMPI_Scatter(a, static_cast<int>(n), t, b, static_cast<int>(m), u, root, comm)
                              : too_many(comm);
  }
  static int mpi_allgatherv(const void* a, count n, type t, void* b, const count* m, const displacement* d,
                            type u, MPI_Comm comm) {
    const int size = peers_of(comm);
    const ints counts(m, size), displs(d, size);
    if (!fits(n) || !counts.fit() || !displs.fit()) return too_many(comm);
    return PMPI_Allgatherv(a, static_cast<int>(n), t, b, counts.data(), displs.data(), u, comm);
  }
  static int mpi_gatherv(const void* a, count n, type t, void* b, const count* m, const displacement* d, type u,
                         int root, MPI_Comm comm) {
    const int size = peers_of(comm);
    const bool is_root = is_root_of(root, comm);
    const ints counts(m, size, is_root), displs(d, size, is_root);
    if (!fits(n) || !counts.fit() || !displs.fit()) return too_many(comm);
    return PMPI_Gatherv(a, static_cast<int>(n), t, b, counts.data(), displs.data(), u, root, comm);
  }
  static int mpi_scatterv(const void* a, const count* n, const displacement* d, type t, void* b, count m,
                          type u, int root, MPI_Comm comm) {
    const int size = peers_of(comm);
    const bool is_root = is_root_of(root, comm);
    const ints counts(n, size, is_root), displs(d, size, is_root);
    if (!fits(m) || !counts.fit() || !displs.fit()) return too_many(comm);
    return PMPI_Scatterv(a, counts.data(), displs.data(), t, b, static_cast<int>(m), u, root, comm);
  }
  static int mpi_alltoallv(const void* a, const count* n, const displacement* d, type t, void* b,
                           const count* m, const displacement* e, type u, MPI_Comm comm) {
    const int size = peers_of(comm);
    const bool sends = a != MPI_IN_PLACE;
    const ints sent(n, size, sends), from(d, size, sends), received(m, size), to(e, size);
    if (!sent.fit() || !from.fit() || !received.fit() || !to.fit()) return too_many(comm);
    return PMPI_Alltoallv(a, sent.data(), from.data(), t, b, received.data(), to.data(), u, comm);
  }
};

}  // namespace isthmus::mpi_shim
