// Functions with MPI_Count counts for versions before MPI 4, which do not have them. The preloaded library
// always exports their names, and programs that look them up at run time (mpi4py) call them. Counts that fit in
// an int are passed to the functions with int counts; others are reported as MPI_ERR_COUNT.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace isthmus::mpi_shim {

inline bool fits_int(std::int64_t value) {
  return value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max();
}

inline int raise_count_error(MPI_Comm comm) {
  PMPI_Comm_call_errhandler(comm, MPI_ERR_COUNT);
  return MPI_ERR_COUNT;
}

// Number of counts in a call: the size of the remote group for an intercommunicator, otherwise the size
// of the communicator.
inline int peer_count(MPI_Comm comm) {
  int is_inter = 0, size = 0;
  PMPI_Comm_test_inter(comm, &is_inter);
  is_inter ? PMPI_Comm_remote_size(comm, &size) : PMPI_Comm_size(comm, &size);
  return size;
}

inline bool is_root_rank(int root, MPI_Comm comm) {
  int is_inter = 0, rank = 0;
  PMPI_Comm_test_inter(comm, &is_inter);
  PMPI_Comm_rank(comm, &rank);
  return is_inter ? root == MPI_ROOT : root == rank;
}

// Copies numbers to ints. data() is NULL if the argument is NULL or not significant on this rank.
class int_array {
 public:
  template <typename Number>
  int_array(const Number* values, int n, bool is_significant = true) {
    if (values == nullptr || !is_significant) return;
    m_values.reserve(static_cast<std::size_t>(n) + 1);  // so that data() is not NULL
    for (int i = 0; i < n; ++i) {
      m_is_in_range = m_is_in_range && fits_int(values[i]);
      m_values.push_back(static_cast<int>(values[i]));
    }
  }
  bool is_in_range() const { return m_is_in_range; }
  const int* data() const { return m_values.capacity() == 0 ? nullptr : m_values.data(); }

 private:
  std::vector<int> m_values;
  bool m_is_in_range = true;
};

struct large_counts {
  using count_type = MPI_Count;
  using displacement_type = MPI_Aint;
  using type = MPI_Datatype;

  static int mpi_bcast(void* a, count_type n, type t, int root, MPI_Comm comm) {
    return fits_int(n) ? PMPI_Bcast(a, static_cast<int>(n), t, root, comm) : raise_count_error(comm);
  }
  static int mpi_reduce(const void* a, void* b, count_type n, type t, MPI_Op op, int root, MPI_Comm comm) {
    return fits_int(n) ? PMPI_Reduce(a, b, static_cast<int>(n), t, op, root, comm) : raise_count_error(comm);
  }
  static int mpi_allreduce(const void* a, void* b, count_type n, type t, MPI_Op op, MPI_Comm comm) {
    return fits_int(n) ? PMPI_Allreduce(a, b, static_cast<int>(n), t, op, comm) : raise_count_error(comm);
  }
  static int mpi_reduce_scatter_block(const void* a, void* b, count_type n, type t, MPI_Op op, MPI_Comm comm) {
    return fits_int(n) ? PMPI_Reduce_scatter_block(a, b, static_cast<int>(n), t, op, comm)
                       : raise_count_error(comm);
  }
  static int mpi_reduce_scatter(const void* a, void* b, const count_type* n, type t, MPI_Op op, MPI_Comm comm) {
    int size = 0;
    PMPI_Comm_size(comm, &size);
    const int_array counts(n, size);
    return counts.is_in_range() ? PMPI_Reduce_scatter(a, b, counts.data(), t, op, comm)
                                : raise_count_error(comm);
  }
  static int mpi_allgather(const void* a, count_type n, type t, void* b, count_type m, type u, MPI_Comm comm) {
    return fits_int(n) && fits_int(m)
               ? PMPI_Allgather(a, static_cast<int>(n), t, b, static_cast<int>(m), u, comm)
               : raise_count_error(comm);
  }
  static int mpi_alltoall(const void* a, count_type n, type t, void* b, count_type m, type u, MPI_Comm comm) {
    return fits_int(n) && fits_int(m)
               ? PMPI_Alltoall(a, static_cast<int>(n), t, b, static_cast<int>(m), u, comm)
               : raise_count_error(comm);
  }
  static int mpi_gather(const void* a, count_type n, type t, void* b, count_type m, type u, int root,
                        MPI_Comm comm) {
    return fits_int(n) && fits_int(m)
               ? PMPI_Gather(a, static_cast<int>(n), t, b, static_cast<int>(m), u, root, comm)
               : raise_count_error(comm);
  }
  static int mpi_scatter(const void* a, count_type n, type t, void* b, count_type m, type u, int root,
                         MPI_Comm comm) {
    return fits_int(n) && fits_int(m)
               ? PMPI_Scatter(a, static_cast<int>(n), t, b, static_cast<int>(m), u, root, comm)
               : raise_count_error(comm);
  }
  static int mpi_allgatherv(const void* a, count_type n, type t, void* b, const count_type* m,
                            const displacement_type* d, type u, MPI_Comm comm) {
    const int size = peer_count(comm);
    const int_array counts(m, size), displs(d, size);
    if (!fits_int(n) || !counts.is_in_range() || !displs.is_in_range()) return raise_count_error(comm);
    return PMPI_Allgatherv(a, static_cast<int>(n), t, b, counts.data(), displs.data(), u, comm);
  }
  static int mpi_gatherv(const void* a, count_type n, type t, void* b, const count_type* m,
                         const displacement_type* d, type u, int root, MPI_Comm comm) {
    const int size = peer_count(comm);
    const bool is_root = is_root_rank(root, comm);
    const int_array counts(m, size, is_root), displs(d, size, is_root);
    if (!fits_int(n) || !counts.is_in_range() || !displs.is_in_range()) return raise_count_error(comm);
    return PMPI_Gatherv(a, static_cast<int>(n), t, b, counts.data(), displs.data(), u, root, comm);
  }
  static int mpi_scatterv(const void* a, const count_type* n, const displacement_type* d, type t, void* b,
                          count_type m, type u, int root, MPI_Comm comm) {
    const int size = peer_count(comm);
    const bool is_root = is_root_rank(root, comm);
    const int_array counts(n, size, is_root), displs(d, size, is_root);
    if (!fits_int(m) || !counts.is_in_range() || !displs.is_in_range()) return raise_count_error(comm);
    return PMPI_Scatterv(a, counts.data(), displs.data(), t, b, static_cast<int>(m), u, root, comm);
  }
  static int mpi_alltoallv(const void* a, const count_type* n, const displacement_type* d, type t, void* b,
                           const count_type* m, const displacement_type* e, type u, MPI_Comm comm) {
    const int size = peer_count(comm);
    const bool is_sending = a != MPI_IN_PLACE;
    const int_array send_counts(n, size, is_sending), send_displs(d, size, is_sending), recv_counts(m, size),
        recv_displs(e, size);
    if (!send_counts.is_in_range() || !send_displs.is_in_range() || !recv_counts.is_in_range() ||
        !recv_displs.is_in_range())
      return raise_count_error(comm);
    return PMPI_Alltoallv(a, send_counts.data(), send_displs.data(), t, b, recv_counts.data(),
                          recv_displs.data(), u, comm);
  }
};

}  // namespace isthmus::mpi_shim
