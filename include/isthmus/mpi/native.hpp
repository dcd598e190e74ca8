// Part of isthmus/mpi.hpp: selects the MPI functions (with the 64-bit counts of MPI 4, or the older ones) and
// maps Isthmus' datatypes and operations to those of MPI.
#ifndef ISTHMUS_MPI_NATIVE_HPP
#define ISTHMUS_MPI_NATIVE_HPP

#include <isthmus/isthmus.h>
#include <isthmus/mpi_table.h>
#include <isthmus/tools.h>
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// A program may run with another MPI version than it was compiled with. Open MPI 4, for example, does not have
// the ROCm query.
#if defined(MPIX_CUDA_AWARE_SUPPORT)
#pragma weak MPIX_Query_cuda_support
#endif
#if defined(MPIX_ROCM_AWARE_SUPPORT)
#pragma weak MPIX_Query_rocm_support
#endif
#if defined(MPIX_GPU_SUPPORT_CUDA) && defined(MPIX_GPU_SUPPORT_HIP)
#pragma weak MPIX_GPU_query_support
#endif

namespace isthmus::mpi::detail {

// One name for each MPI function: the members of a struct that calls the functions PREFIX_NameSUFFIX. Prefix: MPI, or
// PMPI for MPI's own functions in a library that intercepts the others. Suffix: _c for the functions with 64-bit counts
// of MPI 4, or nothing.
#define ISTHMUS_MPI_FUNCTIONS(prefix, suffix)                                    \
  static constexpr auto& broadcast = prefix##_Bcast##suffix;                     \
  static constexpr auto& reduce = prefix##_Reduce##suffix;                       \
  static constexpr auto& allreduce = prefix##_Allreduce##suffix;                 \
  static constexpr auto& reduce_scatter = prefix##_Reduce_scatter_block##suffix; \
  static constexpr auto& reduce_scatterv = prefix##_Reduce_scatter##suffix;      \
  static constexpr auto& allgather = prefix##_Allgather##suffix;                 \
  static constexpr auto& allgatherv = prefix##_Allgatherv##suffix;               \
  static constexpr auto& gather = prefix##_Gather##suffix;                       \
  static constexpr auto& gatherv = prefix##_Gatherv##suffix;                     \
  static constexpr auto& scatter = prefix##_Scatter##suffix;                     \
  static constexpr auto& scatterv = prefix##_Scatterv##suffix;                   \
  static constexpr auto& alltoall = prefix##_Alltoall##suffix;                   \
  static constexpr auto& alltoallv = prefix##_Alltoallv##suffix;                 \
  static constexpr auto& send = prefix##_Send##suffix;                           \
  static constexpr auto& recv = prefix##_Recv##suffix;                           \
  static constexpr auto& start_send = prefix##_Isend##suffix;                    \
  static constexpr auto& start_recv = prefix##_Irecv##suffix;                    \
  static constexpr auto& pack = prefix##_Pack##suffix;                           \
  static constexpr auto& unpack = prefix##_Unpack##suffix;                       \
  static constexpr auto& create_op = prefix##_Op_create##suffix;

// Tests define ISTHMUS_MPI_COUNT_LIMIT. It selects the older functions and splits at that many elements, so that tests
// of splitting do not need gigabytes of data.
#if MPI_VERSION >= 4 && !defined(ISTHMUS_MPI_COUNT_LIMIT)
/// MPI 4: counts and displacements are 64-bit, so nothing is split.
struct native {
  using count = MPI_Count;
  using displacement = MPI_Aint;
  static constexpr std::uint64_t count_limit = INT64_MAX;
  static constexpr int large_counts = 1;
  ISTHMUS_MPI_FUNCTIONS(MPI, _c)
};
#else
#if !defined(ISTHMUS_MPI_COUNT_LIMIT)
#define ISTHMUS_MPI_COUNT_LIMIT INT_MAX
#endif
/// Before MPI 4: collectives.hpp splits counts that do not fit, or describes them by a derived type.
struct native {
  using count = int;
  using displacement = int;
  static constexpr std::uint64_t count_limit = ISTHMUS_MPI_COUNT_LIMIT;
  static constexpr int large_counts = 0;
  ISTHMUS_MPI_FUNCTIONS(MPI, )
};
#endif

/// Returns the size of one element in bytes; 0 for an invalid datatype.
inline std::uint64_t bytes_of(isthmus_datatype datatype) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME: return bytes;
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
  return 0;
}

/// Returns MPI's datatype, or MPI_DATATYPE_NULL for the 16- and 8-bit floating types. The MPI standard does not
/// have them, and implementations that have them use different names.
inline MPI_Datatype builtin_datatype(isthmus_datatype datatype) {
  switch (datatype) {
    case ISTHMUS_INT8: return MPI_INT8_T;
    case ISTHMUS_INT16: return MPI_INT16_T;
    case ISTHMUS_INT32: return MPI_INT32_T;
    case ISTHMUS_INT64: return MPI_INT64_T;
    case ISTHMUS_UINT8: return MPI_UINT8_T;
    case ISTHMUS_UINT16: return MPI_UINT16_T;
    case ISTHMUS_UINT32: return MPI_UINT32_T;
    case ISTHMUS_UINT64: return MPI_UINT64_T;
    case ISTHMUS_FLOAT32: return MPI_FLOAT;
    case ISTHMUS_FLOAT64: return MPI_DOUBLE;
    case ISTHMUS_FLOAT16:
    case ISTHMUS_BFLOAT16:
    case ISTHMUS_FLOAT8_E4M3:
    case ISTHMUS_FLOAT8_E5M2:
    case ISTHMUS_DATATYPE_COUNT: return MPI_DATATYPE_NULL;
  }
  return MPI_DATATYPE_NULL;
}

// Returns MPI's operation if it computes what collectives.def requires, otherwise MPI_OP_NULL. Not
// used: MPI_MIN and MPI_MAX of floating types (the result with NaN depends on the order and can differ
// between ranks), and sums and products of 8 and 16 bits (MPI leaves overflow undefined, and Open MPI's
// vector code saturates).
inline MPI_Op builtin_op(isthmus_datatype datatype, isthmus_reduction_op op) {
  const bool is_floating = datatype == ISTHMUS_FLOAT32 || datatype == ISTHMUS_FLOAT64;
  const bool is_narrow = bytes_of(datatype) < 4;
  if (builtin_datatype(datatype) == MPI_DATATYPE_NULL) return MPI_OP_NULL;
  switch (op) {
    case ISTHMUS_SUM: return is_narrow ? MPI_OP_NULL : MPI_SUM;
    case ISTHMUS_PROD: return is_narrow ? MPI_OP_NULL : MPI_PROD;
    case ISTHMUS_MIN: return is_floating ? MPI_OP_NULL : MPI_MIN;
    case ISTHMUS_MAX: return is_floating ? MPI_OP_NULL : MPI_MAX;
    case ISTHMUS_AVG:
    case ISTHMUS_REDUCTION_OP_COUNT: return MPI_OP_NULL;
  }
  return MPI_OP_NULL;
}

// Returns a bit mask of the platforms whose device buffers this MPI accepts, according to the query functions
// of the MPI implementations.
inline std::uint32_t device_platforms() {
  std::uint32_t mask = 0;
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  auto* const query_cuda = &MPIX_Query_cuda_support;
  if (query_cuda != nullptr && query_cuda() == 1) mask |= 1U << ISTHMUS_PLATFORM_CUDA;
#endif
#if defined(MPIX_ROCM_AWARE_SUPPORT)
  auto* const query_rocm = &MPIX_Query_rocm_support;
  if (query_rocm != nullptr && query_rocm() == 1) mask |= 1U << ISTHMUS_PLATFORM_HIP;
#endif
#if defined(MPIX_GPU_SUPPORT_CUDA) && defined(MPIX_GPU_SUPPORT_HIP)
  const auto is_supported = [](int kind) {
    int query_result = 0;
    auto* const query = &MPIX_GPU_query_support;
    return query != nullptr && query(kind, &query_result) == MPI_SUCCESS && query_result != 0;
  };
  if (is_supported(MPIX_GPU_SUPPORT_CUDA)) mask |= 1U << ISTHMUS_PLATFORM_CUDA;
  if (is_supported(MPIX_GPU_SUPPORT_HIP)) mask |= 1U << ISTHMUS_PLATFORM_HIP;
#endif
  return mask;
}

// The function of a custom MPI_Op. MPI provides no way to report a failure. isthmus_reduce_local accepts all of
// these datatypes and operations, so a failure indicates a broken installation.
template <isthmus_datatype Datatype, isthmus_reduction_op Op>
void reduce_elements(void* in, void* inout, native::count* count, MPI_Datatype*) {
  const isthmus_status status =
      isthmus_reduce_local(in, inout, static_cast<std::uint64_t>(*count), Datatype, Op);
  if (status != ISTHMUS_SUCCESS) MPI_Abort(MPI_COMM_WORLD, status);
}

/// The MPI datatypes and operations of this process. Types that MPI lacks are contiguous bytes, so that MPI_SUM
/// on them is an error instead of a wrong sum. Their operations round at every step.
/// Lifetime: created once, freed in MPI_Finalize.
/// Thread safety: any thread may look up entries.
class native_types {
 public:
  /// Returns the object. The first call creates it and must come from a thread that may call MPI.
  static const native_types& get() {
    static const native_types instance;
    return instance;
  }

  // Returns MPI_SUCCESS, or the first error from the creation of the datatypes and operations.
  int error() const { return m_error; }
  /// Returns the datatype; MPI_DATATYPE_NULL for an invalid one.
  MPI_Datatype datatype(isthmus_datatype datatype) const {
    return datatype < ISTHMUS_DATATYPE_COUNT ? m_datatypes[datatype] : MPI_DATATYPE_NULL;
  }
  // Returns the operation; MPI_OP_NULL for avg, which is not an operation on two elements.
  MPI_Op op(isthmus_datatype datatype, isthmus_reduction_op op) const {
    return datatype < ISTHMUS_DATATYPE_COUNT && op < ISTHMUS_REDUCTION_OP_COUNT ? m_ops[datatype][op]
                                                                                : MPI_OP_NULL;
  }

 private:
  native_types() {
    create_datatypes();
    create_ops(std::make_integer_sequence<int, ISTHMUS_DATATYPE_COUNT>{});
    free_at_finalize();
  }
  native_types(const native_types&) = delete;
  native_types& operator=(const native_types&) = delete;

  /// Stores the first error. Setup continues after an error, so that every entry has a value.
  void record_first_error(int code) {
    if (m_error == MPI_SUCCESS) m_error = code;
  }

  /// Creates byte types for the types that MPI lacks.
  void create_datatypes() {
    for (int i = 0; i < ISTHMUS_DATATYPE_COUNT; ++i) {
      const auto datatype = static_cast<isthmus_datatype>(i);
      m_datatypes[i] = builtin_datatype(datatype);
      if (m_datatypes[i] != MPI_DATATYPE_NULL) continue;
      record_first_error(MPI_Type_contiguous(static_cast<int>(bytes_of(datatype)), MPI_BYTE, &m_datatypes[i]));
      record_first_error(MPI_Type_commit(&m_datatypes[i]));
    }
  }

  // Creates the operation. Sums and products commute bit for bit. Min and max of +0 and -0, or of two NaNs,
  // return the first operand. MPI must therefore keep the rank order, so that all ranks get the same bits.
  template <isthmus_datatype Datatype, isthmus_reduction_op Op>
  void create_op() {
    constexpr int is_commutative = Op == ISTHMUS_SUM || Op == ISTHMUS_PROD;
    m_ops[Datatype][Op] = builtin_op(Datatype, Op);
    if (m_ops[Datatype][Op] == MPI_OP_NULL)
      record_first_error(
          native::create_op(&reduce_elements<Datatype, Op>, is_commutative, &m_ops[Datatype][Op]));
  }

  template <isthmus_datatype Datatype>
  void create_datatype_ops() {
    create_op<Datatype, ISTHMUS_SUM>();
    create_op<Datatype, ISTHMUS_PROD>();
    create_op<Datatype, ISTHMUS_MIN>();
    create_op<Datatype, ISTHMUS_MAX>();
    m_ops[Datatype][ISTHMUS_AVG] = MPI_OP_NULL;
  }

  template <int... Datatypes>
  void create_ops(std::integer_sequence<int, Datatypes...>) {
    (create_datatype_ops<static_cast<isthmus_datatype>(Datatypes)>(), ...);
  }

  // Arranges that MPI_Finalize frees the entries: it first deletes the attributes of MPI_COMM_SELF.
  void free_at_finalize() {
    int key = MPI_KEYVAL_INVALID;
    record_first_error(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &native_types::release, &key, nullptr));
    record_first_error(MPI_Comm_set_attr(MPI_COMM_SELF, key, this));
    record_first_error(MPI_Comm_free_keyval(&key));
  }

  /// Frees the entries that this class created, but not MPI's own types and operations.
  static int release(MPI_Comm, int, void* attribute, void*) {
    auto& types = *static_cast<native_types*>(attribute);
    for (int i = 0; i < ISTHMUS_DATATYPE_COUNT; ++i) {
      const auto datatype = static_cast<isthmus_datatype>(i);
      for (int j = 0; j < ISTHMUS_REDUCTION_OP_COUNT; ++j) {
        const bool is_builtin = builtin_op(datatype, static_cast<isthmus_reduction_op>(j)) != MPI_OP_NULL;
        if (!is_builtin && types.m_ops[i][j] != MPI_OP_NULL) MPI_Op_free(&types.m_ops[i][j]);
      }
      if (builtin_datatype(datatype) == MPI_DATATYPE_NULL) MPI_Type_free(&types.m_datatypes[i]);
    }
    return MPI_SUCCESS;
  }

  MPI_Datatype m_datatypes[ISTHMUS_DATATYPE_COUNT];
  MPI_Op m_ops[ISTHMUS_DATATYPE_COUNT][ISTHMUS_REDUCTION_OP_COUNT];
  int m_error = MPI_SUCCESS;
};

/// Converts an MPI_Comm to the table's handle, without an allocation. An MPI_Comm is an int (MPICH, Intel MPI)
/// or a pointer (Open MPI, the MPI 5 ABI).
// NOLINTBEGIN(bugprone-*): if MPI_Comm is a pointer, its bytes are copied on purpose
inline isthmus_mpi_comm to_handle(MPI_Comm comm) {
  static_assert(sizeof(MPI_Comm) <= sizeof(isthmus_mpi_comm) && std::is_trivially_copyable_v<MPI_Comm>);
  isthmus_mpi_comm handle = nullptr;
  std::memcpy(&handle, &comm, sizeof comm);
  return handle;
}
/// Returns the MPI_Comm of a handle.
inline MPI_Comm to_comm(isthmus_mpi_comm handle) {
  MPI_Comm comm;
  std::memcpy(&comm, &handle, sizeof comm);
  return comm;
}
// NOLINTEND(bugprone-*)

}  // namespace isthmus::mpi::detail

#endif
