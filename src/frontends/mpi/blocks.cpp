#include "frontends/mpi/blocks.hpp"

#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "frontends/mpi/native.hpp"

namespace isthmus::mpi_shim {

// ---- datatypes and operations ----

namespace {

// Contents of a predefined type. MPI defines no sum of opaque types, so Isthmus only moves them.
enum class number_kind { signed_integer, unsigned_integer, floating_point, complex_number, opaque };

struct predefined_type {
  MPI_Datatype type;
  number_kind kind;
  // 0 if the table queries MPI for the size (Fortran types, which depend on the compiler).
  std::uint32_t bytes;
};

// Predefined types without gaps. Pairs such as MPI_DOUBLE_INT are treated as derived types.
std::vector<predefined_type> list_types() {
  return {
      {MPI_CHAR, number_kind::opaque, 1},
      {MPI_BYTE, number_kind::opaque, 1},
      {MPI_PACKED, number_kind::opaque, 1},
      {MPI_WCHAR, number_kind::opaque, sizeof(wchar_t)},
      {MPI_C_BOOL, number_kind::opaque, sizeof(bool)},
      {MPI_LONG_DOUBLE, number_kind::opaque, sizeof(long double)},
      {MPI_C_LONG_DOUBLE_COMPLEX, number_kind::opaque, 2 * sizeof(long double)},
      {MPI_SIGNED_CHAR, number_kind::signed_integer, 1},
      {MPI_UNSIGNED_CHAR, number_kind::unsigned_integer, 1},
      {MPI_SHORT, number_kind::signed_integer, sizeof(short)},
      {MPI_UNSIGNED_SHORT, number_kind::unsigned_integer, sizeof(short)},
      {MPI_INT, number_kind::signed_integer, sizeof(int)},
      {MPI_UNSIGNED, number_kind::unsigned_integer, sizeof(int)},
      {MPI_LONG, number_kind::signed_integer, sizeof(long)},
      {MPI_UNSIGNED_LONG, number_kind::unsigned_integer, sizeof(long)},
      {MPI_LONG_LONG_INT, number_kind::signed_integer, sizeof(long long)},
      {MPI_UNSIGNED_LONG_LONG, number_kind::unsigned_integer, sizeof(long long)},
      {MPI_INT8_T, number_kind::signed_integer, 1},
      {MPI_INT16_T, number_kind::signed_integer, 2},
      {MPI_INT32_T, number_kind::signed_integer, 4},
      {MPI_INT64_T, number_kind::signed_integer, 8},
      {MPI_UINT8_T, number_kind::unsigned_integer, 1},
      {MPI_UINT16_T, number_kind::unsigned_integer, 2},
      {MPI_UINT32_T, number_kind::unsigned_integer, 4},
      {MPI_UINT64_T, number_kind::unsigned_integer, 8},
      {MPI_AINT, number_kind::signed_integer, sizeof(MPI_Aint)},
      {MPI_COUNT, number_kind::signed_integer, sizeof(MPI_Count)},
      {MPI_OFFSET, number_kind::signed_integer, sizeof(MPI_Offset)},
      {MPI_FLOAT, number_kind::floating_point, sizeof(float)},
      {MPI_DOUBLE, number_kind::floating_point, sizeof(double)},
      {MPI_C_FLOAT_COMPLEX, number_kind::complex_number, 2 * sizeof(float)},
      {MPI_C_DOUBLE_COMPLEX, number_kind::complex_number, 2 * sizeof(double)},
      {MPI_CHARACTER, number_kind::opaque, 1},
      {MPI_LOGICAL, number_kind::opaque, 0},
      {MPI_INTEGER, number_kind::signed_integer, 0},
      {MPI_REAL, number_kind::floating_point, 0},
      {MPI_DOUBLE_PRECISION, number_kind::floating_point, 0},
      {MPI_COMPLEX, number_kind::complex_number, 0},
      {MPI_DOUBLE_COMPLEX, number_kind::complex_number, 0},
  };
}

std::optional<isthmus_datatype> reduction_datatype(number_kind kind, std::uint64_t bytes) {
  if (kind == number_kind::signed_integer) {
    if (bytes == 1) return ISTHMUS_INT8;
    if (bytes == 2) return ISTHMUS_INT16;
    if (bytes == 4) return ISTHMUS_INT32;
    if (bytes == 8) return ISTHMUS_INT64;
  } else if (kind == number_kind::unsigned_integer) {
    if (bytes == 1) return ISTHMUS_UINT8;
    if (bytes == 2) return ISTHMUS_UINT16;
    if (bytes == 4) return ISTHMUS_UINT32;
    if (bytes == 8) return ISTHMUS_UINT64;
  } else if (kind == number_kind::floating_point) {
    if (bytes == 4) return ISTHMUS_FLOAT32;
    if (bytes == 8) return ISTHMUS_FLOAT64;
  } else if (kind == number_kind::complex_number) {
    return reduction_datatype(number_kind::floating_point, bytes / 2);
  }
  return std::nullopt;
}

// Hash table of the predefined types with open addressing. At most one third of the slots are used, so a lookup
// takes a few instructions.
class type_table {
 public:
  static const type_table& get() {
    static const type_table instance;
    return instance;
  }

  const predefined_type* find(MPI_Datatype type) const {
    for (std::size_t slot = slot_of(key_of(type));; slot = (slot + 1) % slot_count) {
      const predefined_type* const entry = m_slots[slot];
      if (entry == nullptr || entry->type == type) return entry;
    }
  }

 private:
  static constexpr std::size_t slot_count = 128;

  type_table() : m_types(list_types()) {
    for (predefined_type& each : m_types) {
      int bytes = 0;
      if (each.bytes == 0 && each.type != MPI_DATATYPE_NULL && PMPI_Type_size(each.type, &bytes) == MPI_SUCCESS)
        each.bytes = static_cast<std::uint32_t>(bytes);
      if (each.type == MPI_DATATYPE_NULL || find(each.type) != nullptr)
        continue;  // another name of a type in the table, or not available
      std::size_t slot = slot_of(key_of(each.type));
      while (m_slots[slot] != nullptr) slot = (slot + 1) % slot_count;
      m_slots[slot] = &each;
    }
  }
  static std::size_t slot_of(std::uintptr_t key) {
    return static_cast<std::size_t>(key * 0x9e3779b97f4a7c15u >> 57);
  }

  std::vector<predefined_type> m_types;
  std::array<const predefined_type*, slot_count> m_slots{};
};

bool has_dense_order(MPI_Datatype type);

// Returns whether the only inner type of a duplicated or contiguous type is dense.
bool is_wrapper_of_dense(MPI_Datatype type, int integers, int types) {
  int numbers[1];
  MPI_Aint ignored = 0;
  MPI_Datatype inner = MPI_DATATYPE_NULL;
  if (integers > 1 || types != 1 ||
      PMPI_Type_get_contents(type, integers, 0, 1, numbers, &ignored, &inner) != MPI_SUCCESS)
    return false;
  const bool is_dense = has_dense_order(inner);
  int own_integers = 0, own_addresses = 0, own_types = 0, combiner = MPI_COMBINER_NAMED;
  PMPI_Type_get_envelope(inner, &own_integers, &own_addresses, &own_types, &combiner);
  const bool is_predefined = combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_INTEGER ||
                             combiner == MPI_COMBINER_F90_REAL || combiner == MPI_COMBINER_F90_COMPLEX;
  if (!is_predefined) PMPI_Type_free(&inner);
  return is_dense;
}

// Returns whether bytes have the same order in memory and in a message. Returns false if that is unknown.
bool has_dense_order(MPI_Datatype type) {
  if (type_table::get().find(type) != nullptr) return true;
  int integers = 0, addresses = 0, types = 0, combiner = MPI_COMBINER_NAMED;
  if (PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS) return false;
  if (combiner == MPI_COMBINER_DUP || combiner == MPI_COMBINER_CONTIGUOUS)
    return is_wrapper_of_dense(type, integers, types);
  return false;
}

}  // namespace

bool find_layout(MPI_Datatype type, datatype_layout& result) {
  if (const predefined_type* const predefined = type_table::get().find(type)) {
    const std::uint64_t bytes = predefined->bytes;
    result = {type, bytes, static_cast<std::int64_t>(bytes), true};
    return bytes > 0;
  }
  if (type == MPI_DATATYPE_NULL) return false;
  MPI_Count bytes = 0;
  MPI_Aint lower = 0, extent = 0;
  if (PMPI_Type_size_x(type, &bytes) != MPI_SUCCESS || bytes < 0 ||
      PMPI_Type_get_extent(type, &lower, &extent) != MPI_SUCCESS)
    return false;
  const bool is_dense = lower == 0 && extent == bytes && has_dense_order(type);
  result = {type, static_cast<std::uint64_t>(bytes), extent, is_dense};
  return true;
}

reduction_support find_reduction(MPI_Datatype type, MPI_Op op, reduction_mapping& result) {
  const predefined_type* const predefined = type_table::get().find(type);
  if (predefined == nullptr) return reduction_support::unsupported_type;
  const std::uint64_t bytes = predefined->bytes;
  const auto number = reduction_datatype(predefined->kind, bytes);
  if (!number) return reduction_support::unsupported_type;
  const bool is_complex = predefined->kind == number_kind::complex_number;
  const std::uint64_t values_per_element = is_complex ? 2 : 1;
  if (op == MPI_SUM)
    result = {*number, ISTHMUS_SUM, values_per_element, bytes};
  else if (is_complex)
    return reduction_support::unsupported_op;
  else if (op == MPI_MAX)
    result = {*number, ISTHMUS_MAX, values_per_element, bytes};
  else if (op == MPI_MIN)
    result = {*number, ISTHMUS_MIN, values_per_element, bytes};
  else if (op == MPI_PROD)
    result = {*number, ISTHMUS_PROD, values_per_element, bytes};
  else
    return reduction_support::unsupported_op;
  return reduction_support::supported;
}

// ---- buffers ----

namespace {

// Counts of elements and packed bytes are limited by MPI's type for them. With int counts, a single element of 2 GiB or
// more cannot be packed.
using count_type = native_counts::count;

std::uint64_t max_elements_per_call(const datatype_layout& layout) {
  constexpr auto max_count = static_cast<std::uint64_t>(std::numeric_limits<count_type>::max());
  return std::max<std::uint64_t>(1, max_count / std::max<std::uint64_t>(1, layout.bytes));
}

// Calls convert(buffer, type), which returns an MPI code. For MPI_BOTTOM, which MPICH 4.0 rejects when it packs, the
// arguments are another buffer and a type that is shifted to the same addresses.
template <typename Pointer, typename Convert>
int convert_at(Pointer buffer, MPI_Datatype type, Convert&& convert) {
  if (buffer != MPI_BOTTOM) return convert(buffer, type);
  static char anchor;
  const int one = 1;
  MPI_Aint shift = 0;
  MPI_Datatype shifted = MPI_DATATYPE_NULL;
  PMPI_Get_address(&anchor, &shift);
  shift = -shift;
  int code = PMPI_Type_create_hindexed(1, &one, &shift, type, &shifted);
  if (code == MPI_SUCCESS) code = PMPI_Type_commit(&shifted);
  if (code == MPI_SUCCESS) code = convert(static_cast<Pointer>(&anchor), shifted);
  if (shifted != MPI_DATATYPE_NULL) PMPI_Type_free(&shifted);
  return code;
}

// Copies dense elements. Otherwise, calls convert(first, n), which returns an MPI code, for as many elements as one
// call can convert.
template <typename Convert>
int copy_elements(void* destination, const void* source, std::uint64_t count, const datatype_layout& layout,
                  Convert&& convert) {
  if (layout.is_dense) {
    if (count > 0) std::memcpy(destination, source, count * layout.bytes);
    return MPI_SUCCESS;
  }
  const std::uint64_t max_elements = max_elements_per_call(layout);
  for (std::uint64_t first = 0; first < count; first += max_elements)
    if (const int code = convert(first, std::min(max_elements, count - first)); code != MPI_SUCCESS)
      return code;
  return MPI_SUCCESS;
}

}  // namespace

int pack_elements(const void* source, std::uint64_t count, const datatype_layout& layout, char* destination,
                  MPI_Comm comm) {
  return copy_elements(destination, source, count, layout, [&](std::uint64_t first, std::uint64_t n) {
    const void* const elements = offset(source, static_cast<std::int64_t>(first) * layout.extent);
    return convert_at(elements, layout.type, [&](const void* buffer, MPI_Datatype type) {
      count_type position = 0;
      const auto elements_to_pack = static_cast<count_type>(n);
      return native_counts::pack(buffer, elements_to_pack, type, destination + first * layout.bytes,
                                 elements_to_pack * static_cast<count_type>(layout.bytes), &position, comm);
    });
  });
}

int unpack_elements(const char* source, void* destination, std::uint64_t count, const datatype_layout& layout,
                    MPI_Comm comm) {
  return copy_elements(destination, source, count, layout, [&](std::uint64_t first, std::uint64_t n) {
    void* const elements = offset(destination, static_cast<std::int64_t>(first) * layout.extent);
    return convert_at(elements, layout.type, [&](void* buffer, MPI_Datatype type) {
      count_type position = 0;
      const auto elements_to_unpack = static_cast<count_type>(n);
      return native_counts::unpack(source + first * layout.bytes,
                                   elements_to_unpack * static_cast<count_type>(layout.bytes), &position,
                                   buffer, elements_to_unpack, type, comm);
    });
  });
}

void packed_blocks::reserve(std::size_t ranks) {
  m_displs.reserve(ranks);
  m_bytes.reserve(ranks);
  m_offsets.reserve(ranks);
}

void packed_blocks::add(std::int64_t count, std::int64_t displ) {
  m_is_valid = m_is_valid && count >= 0;
  const std::uint64_t bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, count)) * m_layout.bytes;
  m_bytes.push_back(bytes);
  m_displs.push_back(bytes == 0 ? 0 : displ);  // displacements of empty blocks are ignored
  m_total += bytes;
}

// Staged blocks are contiguous. Otherwise, offsets are relative to the lowest block, because MPI
// allows negative displacements.
void packed_blocks::assign_offsets() {
  m_offsets.resize(m_bytes.size());
  if (m_is_staged) {
    std::uint64_t position = 0;
    for (std::size_t i = 0; i < m_bytes.size(); ++i) {
      m_offsets[i] = position;
      position += m_bytes[i];
    }
    m_staging = std::make_unique_for_overwrite<char[]>(std::max<std::uint64_t>(1, m_total));
    return;
  }
  std::int64_t min_displ = 0;
  for (const std::int64_t displ : m_displs) min_displ = std::min(min_displ, displ);
  m_base = offset(m_buffer, min_displ * m_layout.extent);
  for (std::size_t i = 0; i < m_bytes.size(); ++i)
    m_offsets[i] =
        m_bytes[i] == 0 ? 0 : static_cast<std::uint64_t>((m_displs[i] - min_displ) * m_layout.extent);
}

int packed_blocks::pack_block(int rank, char* destination, MPI_Comm comm) const {
  return pack_elements(user_data(rank), bytes(rank) / std::max<std::uint64_t>(1, m_layout.bytes), m_layout,
                       destination, comm);
}

int packed_blocks::pack(MPI_Comm comm) const {
  for (std::size_t i = 0; m_staging && i < m_bytes.size(); ++i)
    if (m_bytes[i] > 0)
      if (const int code = pack_block(static_cast<int>(i), m_staging.get() + m_offsets[i], comm);
          code != MPI_SUCCESS)
        return code;
  return MPI_SUCCESS;
}

int packed_blocks::unpack(MPI_Comm comm) const {
  for (std::size_t i = 0; m_staging && i < m_bytes.size(); ++i) {
    if (m_bytes[i] == 0) continue;
    const int code =
        unpack_elements(m_staging.get() + m_offsets[i], const_cast<void*>(user_data(static_cast<int>(i))),
                        m_bytes[i] / m_layout.bytes, m_layout, comm);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

}  // namespace isthmus::mpi_shim
