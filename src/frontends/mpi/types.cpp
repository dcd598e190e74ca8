#include "frontends/mpi/types.hpp"

#include <isthmus/isthmus.h>

#include <array>
#include <optional>
#include <vector>

#include "frontends/mpi/native.hpp"

namespace isthmus::mpi_shim {
namespace {

// What a predefined type is made of. Opaque ones are moved only: MPI defines no sum of them.
enum class kind { is_signed, is_unsigned, floating, complex_number, opaque };

struct known_type {
  MPI_Datatype type;
  kind what;
  std::uint32_t
      bytes;  // 0: asked of MPI when the table is made (Fortran's types, which depend on the compiler)
};

// Only types without gaps: pairs such as MPI_DOUBLE_INT are described like derived ones.
std::vector<known_type> list_types() {
  return {
      {MPI_CHAR, kind::opaque, 1},
      {MPI_BYTE, kind::opaque, 1},
      {MPI_PACKED, kind::opaque, 1},
      {MPI_WCHAR, kind::opaque, sizeof(wchar_t)},
      {MPI_C_BOOL, kind::opaque, sizeof(bool)},
      {MPI_LONG_DOUBLE, kind::opaque, sizeof(long double)},
      {MPI_C_LONG_DOUBLE_COMPLEX, kind::opaque, 2 * sizeof(long double)},
      {MPI_SIGNED_CHAR, kind::is_signed, 1},
      {MPI_UNSIGNED_CHAR, kind::is_unsigned, 1},
      {MPI_SHORT, kind::is_signed, sizeof(short)},
      {MPI_UNSIGNED_SHORT, kind::is_unsigned, sizeof(short)},
      {MPI_INT, kind::is_signed, sizeof(int)},
      {MPI_UNSIGNED, kind::is_unsigned, sizeof(int)},
      {MPI_LONG, kind::is_signed, sizeof(long)},
      {MPI_UNSIGNED_LONG, kind::is_unsigned, sizeof(long)},
      {MPI_LONG_LONG_INT, kind::is_signed, sizeof(long long)},
      {MPI_UNSIGNED_LONG_LONG, kind::is_unsigned, sizeof(long long)},
      {MPI_INT8_T, kind::is_signed, 1},
      {MPI_INT16_T, kind::is_signed, 2},
      {MPI_INT32_T, kind::is_signed, 4},
      {MPI_INT64_T, kind::is_signed, 8},
      {MPI_UINT8_T, kind::is_unsigned, 1},
      {MPI_UINT16_T, kind::is_unsigned, 2},
      {MPI_UINT32_T, kind::is_unsigned, 4},
      {MPI_UINT64_T, kind::is_unsigned, 8},
      {MPI_AINT, kind::is_signed, sizeof(MPI_Aint)},
      {MPI_COUNT, kind::is_signed, sizeof(MPI_Count)},
      {MPI_OFFSET, kind::is_signed, sizeof(MPI_Offset)},
      {MPI_FLOAT, kind::floating, sizeof(float)},
      {MPI_DOUBLE, kind::floating, sizeof(double)},
      {MPI_C_FLOAT_COMPLEX, kind::complex_number, 2 * sizeof(float)},
      {MPI_C_DOUBLE_COMPLEX, kind::complex_number, 2 * sizeof(double)},
      {MPI_CHARACTER, kind::opaque, 1},
      {MPI_LOGICAL, kind::opaque, 0},
      {MPI_INTEGER, kind::is_signed, 0},
      {MPI_REAL, kind::floating, 0},
      {MPI_DOUBLE_PRECISION, kind::floating, 0},
      {MPI_COMPLEX, kind::complex_number, 0},
      {MPI_DOUBLE_COMPLEX, kind::complex_number, 0},
  };
}

std::optional<isthmus_datatype> number_of(kind what, std::uint64_t bytes) {
  if (what == kind::is_signed) {
    if (bytes == 1) return ISTHMUS_INT8;
    if (bytes == 2) return ISTHMUS_INT16;
    if (bytes == 4) return ISTHMUS_INT32;
    if (bytes == 8) return ISTHMUS_INT64;
  } else if (what == kind::is_unsigned) {
    if (bytes == 1) return ISTHMUS_UINT8;
    if (bytes == 2) return ISTHMUS_UINT16;
    if (bytes == 4) return ISTHMUS_UINT32;
    if (bytes == 8) return ISTHMUS_UINT64;
  } else if (what == kind::floating) {
    if (bytes == 4) return ISTHMUS_FLOAT32;
    if (bytes == 8) return ISTHMUS_FLOAT64;
  } else if (what == kind::complex_number) {
    return number_of(kind::floating, bytes / 2);
  }
  return std::nullopt;
}

// Finds a predefined type in a few instructions: open addressing, at most a third full.
class type_table {
 public:
  static const type_table& get() {
    static const type_table only;
    return only;
  }

  const known_type* find(MPI_Datatype type) const {
    for (std::size_t at = place_of(key_of(type));; at = (at + 1) % places) {
      const known_type* const here = m_places[at];
      if (here == nullptr || here->type == type) return here;
    }
  }

 private:
  static constexpr std::size_t places = 128;

  type_table() : m_types(list_types()) {
    for (known_type& each : m_types) {
      int bytes = 0;
      if (each.bytes == 0 && each.type != MPI_DATATYPE_NULL && PMPI_Type_size(each.type, &bytes) == MPI_SUCCESS)
        each.bytes = static_cast<std::uint32_t>(bytes);
      if (each.type == MPI_DATATYPE_NULL || find(each.type) != nullptr)
        continue;  // a second name, or not built
      std::size_t at = place_of(key_of(each.type));
      while (m_places[at] != nullptr) at = (at + 1) % places;
      m_places[at] = &each;
    }
  }
  static std::size_t place_of(std::uintptr_t key) {
    return static_cast<std::size_t>(key * 0x9e3779b97f4a7c15u >> 57);
  }

  std::vector<known_type> m_types;
  std::array<const known_type*, places> m_places{};
};

bool has_dense_order(MPI_Datatype type);

// The one type that a duplicate or a contiguous type is made of.
bool is_made_of_dense(MPI_Datatype type, int integers, int types) {
  int numbers[1];
  MPI_Aint ignored = 0;
  MPI_Datatype inner = MPI_DATATYPE_NULL;
  if (integers > 1 || types != 1 ||
      PMPI_Type_get_contents(type, integers, 0, 1, numbers, &ignored, &inner) != MPI_SUCCESS)
    return false;
  const bool dense = has_dense_order(inner);
  int own_integers = 0, own_addresses = 0, own_types = 0, combiner = MPI_COMBINER_NAMED;
  PMPI_Type_get_envelope(inner, &own_integers, &own_addresses, &own_types, &combiner);
  const bool is_predefined = combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_INTEGER ||
                             combiner == MPI_COMBINER_F90_REAL || combiner == MPI_COMBINER_F90_COMPLEX;
  if (!is_predefined) PMPI_Type_free(&inner);
  return dense;
}

// Whether bytes lie in memory in the order in which they are sent. Says no where it does not know.
bool has_dense_order(MPI_Datatype type) {
  if (type_table::get().find(type) != nullptr) return true;
  int integers = 0, addresses = 0, types = 0, combiner = MPI_COMBINER_NAMED;
  if (PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS) return false;
  if (combiner == MPI_COMBINER_DUP || combiner == MPI_COMBINER_CONTIGUOUS)
    return is_made_of_dense(type, integers, types);
  return false;
}

}  // namespace

bool describe(MPI_Datatype type, datatype_layout& result) {
  if (const known_type* const known = type_table::get().find(type)) {
    const std::uint64_t bytes = known->bytes;
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

reducible find_reduction(MPI_Datatype type, MPI_Op op, reduction& result) {
  const known_type* const known = type_table::get().find(type);
  if (known == nullptr) return reducible::not_this_type;
  const std::uint64_t bytes = known->bytes;
  const auto number = number_of(known->what, bytes);
  if (!number) return reducible::not_this_type;
  const bool is_complex = known->what == kind::complex_number;
  const std::uint64_t numbers = is_complex ? 2 : 1;
  if (op == MPI_SUM)
    result = {*number, ISTHMUS_SUM, numbers, bytes};
  else if (is_complex)
    return reducible::not_this_op;
  else if (op == MPI_MAX)
    result = {*number, ISTHMUS_MAX, numbers, bytes};
  else if (op == MPI_MIN)
    result = {*number, ISTHMUS_MIN, numbers, bytes};
  else if (op == MPI_PROD)
    result = {*number, ISTHMUS_PROD, numbers, bytes};
  else
    return reducible::not_this_op;
  return reducible::yes;
}

}  // namespace isthmus::mpi_shim
