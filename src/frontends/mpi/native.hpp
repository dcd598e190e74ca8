// MPI's own functions under common names for int and MPI_Count counts. They must be the PMPI functions, because
// the MPI names resolve to the preloaded library.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <isthmus/mpi/arguments.hpp>
#include <tuple>
#include <type_traits>

namespace isthmus::mpi_shim {

struct small_counts {
  using count = int;
  using displacement = int;
  ISTHMUS_MPI_FUNCTIONS(PMPI, )
};

#if MPI_VERSION >= 4
struct large_counts {
  using count = MPI_Count;
  using displacement = MPI_Aint;
  ISTHMUS_MPI_FUNCTIONS(PMPI, _c)
};
using native_counts = large_counts;
#else
using native_counts = small_counts;

// Calls of functions with int counts that take MPI_Count counts.
namespace int_calls {

// An argument that is passed on unchanged, a count, and an array of counts or displacements.
template <typename Argument>
struct unchanged {
  unchanged(Argument value, int) : m_value(value) {}
  static bool fits() { return true; }
  Argument get() const { return m_value; }
  Argument m_value;
};
struct int_count {
  int_count(MPI_Count value, int) : m_value(value) {}
  bool fits() const { return mpi::detail::fits_native<int>(m_value); }
  int get() const { return static_cast<int>(m_value); }
  MPI_Count m_value;
};
struct int_array : mpi::detail::converted_array<int> {
  using converted_array::converted_array;
  const int* get() const { return data(); }
};

template <typename Argument>
using converted = std::conditional_t<
    std::is_same_v<Argument, MPI_Count>, int_count,
    std::conditional_t<std::is_same_v<Argument, const MPI_Count*> || std::is_same_v<Argument, const MPI_Aint*>,
                       int_array, unchanged<Argument> > >;

// Calls `function`. The last argument is the communicator. Arrays have `array_size` elements; NULL stands for an array
// that is not significant on this rank.
template <typename Function, typename... Arguments>
int call(Function& function, int array_size, Arguments... arguments) {
  return [&](const auto&... results) {
    if ((results.fits() && ...)) return function(results.get()...);
    PMPI_Comm_call_errhandler(std::get<sizeof...(Arguments) - 1>(std::tie(arguments...)), MPI_ERR_COUNT);
    return MPI_ERR_COUNT;
  }(converted<Arguments>(arguments, array_size)...);
}

template <auto& Function>
inline constexpr auto without_arrays = [](auto... arguments) { return call(Function, 0, arguments...); };

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

}  // namespace int_calls

// Versions before MPI 4 do not have functions with MPI_Count counts. The preloaded library always exports their names,
// and programs that look them up at run time (mpi4py) call them. Counts that fit in an int are passed to the functions
// with int counts; others are reported as MPI_ERR_COUNT.
struct large_counts {
  using count = MPI_Count;
  using displacement = MPI_Aint;
  using type = MPI_Datatype;
  static constexpr auto broadcast = int_calls::without_arrays<PMPI_Bcast>;
  static constexpr auto reduce = int_calls::without_arrays<PMPI_Reduce>;
  static constexpr auto allreduce = int_calls::without_arrays<PMPI_Allreduce>;
  static constexpr auto reduce_scatter = int_calls::without_arrays<PMPI_Reduce_scatter_block>;
  static constexpr auto allgather = int_calls::without_arrays<PMPI_Allgather>;
  static constexpr auto alltoall = int_calls::without_arrays<PMPI_Alltoall>;
  static constexpr auto gather = int_calls::without_arrays<PMPI_Gather>;
  static constexpr auto scatter = int_calls::without_arrays<PMPI_Scatter>;

  static int reduce_scatterv(const void* a, void* b, const count* n, type t, MPI_Op op, MPI_Comm comm) {
    int size = 0;
    PMPI_Comm_size(comm, &size);
    return int_calls::call(PMPI_Reduce_scatter, size, a, b, n, t, op, comm);
  }
  static int allgatherv(const void* a, count n, type t, void* b, const count* m, const displacement* d, type u,
                        MPI_Comm comm) {
    return int_calls::call(PMPI_Allgatherv, int_calls::peer_count(comm), a, n, t, b, m, d, u, comm);
  }
  static int gatherv(const void* a, count n, type t, void* b, const count* m, const displacement* d, type u,
                     int root, MPI_Comm comm) {
    const bool is_root = int_calls::is_root_rank(root, comm);
    return int_calls::call(PMPI_Gatherv, int_calls::peer_count(comm), a, n, t, b, is_root ? m : nullptr,
                           is_root ? d : nullptr, u, root, comm);
  }
  static int scatterv(const void* a, const count* n, const displacement* d, type t, void* b, count m, type u,
                      int root, MPI_Comm comm) {
    const bool is_root = int_calls::is_root_rank(root, comm);
    return int_calls::call(PMPI_Scatterv, int_calls::peer_count(comm), a, is_root ? n : nullptr,
                           is_root ? d : nullptr, t, b, m, u, root, comm);
  }
  static int alltoallv(const void* a, const count* n, const displacement* d, type t, void* b, const count* m,
                       const displacement* e, type u, MPI_Comm comm) {
    const bool is_sending = a != MPI_IN_PLACE;
    return int_calls::call(PMPI_Alltoallv, int_calls::peer_count(comm), a, is_sending ? n : nullptr,
                           is_sending ? d : nullptr, t, b, m, e, u, comm);
  }
};
#endif

// MPICH and its derivatives report an error if the send buffer is the receive buffer. Open MPI treats such
// calls as in place.
#if defined(OPEN_MPI)
inline constexpr bool reports_aliases = false;
#else
inline constexpr bool reports_aliases = true;
#endif

// Converts a handle to a number. Handles are ints in MPICH and pointers in Open MPI and in the MPI 5 ABI.
template <typename Handle>
std::uintptr_t key_of(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>)
    return reinterpret_cast<std::uintptr_t>(handle);
  else
    return static_cast<std::uint32_t>(handle);
}

}  // namespace isthmus::mpi_shim
