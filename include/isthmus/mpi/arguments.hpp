// Part of isthmus/mpi.hpp: converts operations to the arguments of MPI. Counts are 64-bit in Isthmus and int
// before MPI 4. Counts that do not fit are split into chunks or described by one element of a derived type.
#ifndef ISTHMUS_MPI_ARGUMENTS_HPP
#define ISTHMUS_MPI_ARGUMENTS_HPP

#include <algorithm>
#include <array>
#include <isthmus/mpi/native.hpp>
#include <limits>
#include <type_traits>
#include <vector>

namespace isthmus::mpi::detail {

inline constexpr int payload_tag = 0;  // the communicator is a duplicate that only Isthmus uses

// One operation with its MPI communicator, datatype and rank.
struct mpi_call {
  const isthmus_operation& operation;
  MPI_Comm comm;
  MPI_Datatype type;
  std::uint64_t element_bytes;
  int rank;

  bool is_root() const { return rank == operation.root; }
  const char* send_pointer(std::uint64_t element) const {
    return static_cast<const char*>(operation.send_buf) + element * element_bytes;
  }
  char* recv_pointer(std::uint64_t element) const {
    return static_cast<char*>(operation.recv_buf) + element * element_bytes;
  }
  // Returns the offset of this rank's block of `count` elements in a buffer of one block per rank.
  std::uint64_t own_block() const { return static_cast<std::uint64_t>(rank) * operation.count; }
  MPI_Op op() const { return native_types::get().op(operation.datatype, operation.op); }
};

// Calls `step(first, count)` for each chunk of [0, count) that fits MPI's count type; once if
// counts are 64-bit.
template <typename Step>
int for_each_chunk(std::uint64_t count, Step&& step) {
  std::uint64_t first = 0;
  do {
    const std::uint64_t chunk = std::min(count - first, native::count_limit);
    if (const int code = step(first, static_cast<native::count>(chunk)); code != MPI_SUCCESS) return code;
    first += chunk;
  } while (first < count);
  return MPI_SUCCESS;
}

// Describes `count` elements as (count, type), or as one element of a derived type of exactly that size if the
// count does not fit. Gather-like collectives must remain one call, because MPI places the blocks.
class counted_block {
 public:
  counted_block(std::uint64_t count, MPI_Datatype element)
      : m_count(static_cast<native::count>(count)), m_type(element) {
    if (count <= native::count_limit) return;
    m_is_owner = true;
    m_count = 1;
    m_error = build(count, element);
  }
  ~counted_block() {
    if (m_is_owner && m_type != MPI_DATATYPE_NULL) MPI_Type_free(&m_type);
  }
  counted_block(const counted_block&) = delete;
  counted_block& operator=(const counted_block&) = delete;

  /// Returns MPI_SUCCESS, or the error from the creation of the type.
  int error() const { return m_error; }
  /// Returns the count to pass to MPI: 1 if the type holds all elements.
  native::count count() const { return m_count; }
  MPI_Datatype type() const { return m_type; }

 private:
  int build(std::uint64_t count, MPI_Datatype element) {
    const auto limit = static_cast<int>(std::min<std::uint64_t>(native::count_limit, INT_MAX));
    const auto blocks = count / static_cast<std::uint64_t>(limit);
    const auto remainder = static_cast<int>(count % static_cast<std::uint64_t>(limit));
    m_type = MPI_DATATYPE_NULL;
    if (blocks > INT_MAX) return MPI_ERR_COUNT;
    MPI_Aint lower = 0, element_extent = 0;
    MPI_Datatype block = MPI_DATATYPE_NULL, body = MPI_DATATYPE_NULL;
    int code = MPI_Type_get_extent(element, &lower, &element_extent);
    if (code == MPI_SUCCESS) code = MPI_Type_contiguous(limit, element, &block);
    if (code == MPI_SUCCESS) code = MPI_Type_contiguous(static_cast<int>(blocks), block, &body);
    if (code == MPI_SUCCESS) {
      const int lengths[] = {1, remainder};
      const MPI_Aint displacements[] = {0, element_extent * limit * static_cast<MPI_Aint>(blocks)};
      const MPI_Datatype types[] = {body, element};
      code = MPI_Type_create_struct(remainder == 0 ? 1 : 2, lengths, displacements, types, &m_type);
    }
    if (code == MPI_SUCCESS) code = MPI_Type_commit(&m_type);
    if (block != MPI_DATATYPE_NULL) MPI_Type_free(&block);
    if (body != MPI_DATATYPE_NULL) MPI_Type_free(&body);
    return code;
  }

  native::count m_count;
  MPI_Datatype m_type;
  bool m_is_owner = false;  // this object created the type and frees it
  int m_error = MPI_SUCCESS;
};

/// Returns whether a count or displacement fits MPI's type.
template <typename Native, typename Number>
bool fits_native(Number value) {
  if constexpr (std::is_signed_v<Number>)
    if (value < 0) return value >= std::numeric_limits<Native>::min();
  return static_cast<std::uint64_t>(value) <= native::count_limit;
}

// Converts counts or displacements to MPI's type, without a heap allocation for up to 64 ranks. `values` may be
// null if MPI does not read it.
template <typename Native>
class converted_array {
 public:
  template <typename Number>
  converted_array(const Number* values, int size) : m_is_present(values != nullptr) {
    if (!m_is_present) return;
    Native* destination = m_inline.data();
    if (static_cast<std::size_t>(size) > m_inline.size()) {
      m_heap.resize(static_cast<std::size_t>(size));
      destination = m_heap.data();
    }
    for (int i = 0; i < size; ++i) {
      m_fits = m_fits && fits_native<Native>(values[i]);
      destination[i] = static_cast<Native>(values[i]);
    }
  }
  /// Returns whether all values fit MPI's type.
  bool fits() const { return m_fits; }
  const Native* data() const {
    return !m_is_present ? nullptr : m_heap.empty() ? m_inline.data() : m_heap.data();
  }

 private:
  bool m_is_present, m_fits = true;
  std::array<Native, 64> m_inline;
  std::vector<Native> m_heap;
};

// The counts and displacements of one side of a v-collective.
struct vector_layout {
  converted_array<native::count> counts;
  converted_array<native::displacement> displs;
  vector_layout(const std::uint64_t* counts, const std::uint64_t* displs, int size)
      : counts(counts, size), displs(displs, size) {}
  bool fits() const { return counts.fits() && displs.fits(); }
};

}  // namespace isthmus::mpi::detail

#endif
