// The C++ enumerations of the collective table, and the mapping from C++ types to its datatypes.
#ifndef ISTHMUS_SYCL_TYPES_HPP
#define ISTHMUS_SYCL_TYPES_HPP

#include <isthmus/types.h>

#include <concepts>
#include <cstdint>
#include <isthmus/sycl/features.hpp>
#include <type_traits>

namespace isthmus {

/// The datatype of elements. C++ types map to a datatype (float to float32). Use as_datatype() for types
/// without a datatype. Values equal those of isthmus_datatype.
enum class datatype {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) name = ISTHMUS_##NAME,
#include <isthmus/collectives.def>
};

/// The reduction operation: sum, prod, min, max, avg. avg is the sum divided by the number of ranks;
/// collectives.def documents rounding and wrapping. Values equal those of isthmus_reduction_op.
enum class reduction_op {
#define ISTHMUS_REDUCTION_OP(name, NAME) name = ISTHMUS_##NAME,
#include <isthmus/collectives.def>
};

namespace detail {

inline constexpr std::size_t datatype_bytes[] = {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) bytes,
#include <isthmus/collectives.def>
};

/// The layout of a C++ type: `units` elements of `type`. Types without a datatype are transferred as bytes. All
/// collectives that do not reduce support this.
struct element_layout {
  isthmus_datatype type = ISTHMUS_UINT8;
  std::uint64_t units = 1;   // elements of `type` per value
  bool is_reducible = true;  // whether Isthmus can reduce them
};

/// Returns the element layout of T: float32 for float, int32 for int, and so on by size and sign. bool,
/// char8_t and enumerations are transferred as bytes. A type that is not trivially copyable does not
/// compile. The function is constexpr, not consteval, because clang 15 loses members of an aggregate that a
/// consteval function returns.
template <typename T>
constexpr element_layout element_of() {
  using value = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<value, float>) {
    return {ISTHMUS_FLOAT32};
  } else if constexpr (std::is_same_v<value, double>) {
    return {ISTHMUS_FLOAT64};
  } else if constexpr (std::is_same_v<value, sycl::half>) {
    return {ISTHMUS_FLOAT16};
  } else if constexpr (std::is_same_v<value, bfloat16>) {
    return {ISTHMUS_BFLOAT16};
  } else if constexpr (std::integral<value> && !std::is_same_v<value, bool> && sizeof(value) <= 8) {
    constexpr isthmus_datatype signed_types[] = {ISTHMUS_INT8, ISTHMUS_INT16, ISTHMUS_INT32, ISTHMUS_INT64};
    constexpr isthmus_datatype unsigned_types[] = {ISTHMUS_UINT8, ISTHMUS_UINT16, ISTHMUS_UINT32,
                                                   ISTHMUS_UINT64};
    constexpr int log2_bytes = sizeof(value) == 1 ? 0 : sizeof(value) == 2 ? 1 : sizeof(value) == 4 ? 2 : 3;
    return {std::is_signed_v<value> ? signed_types[log2_bytes] : unsigned_types[log2_bytes]};
  } else {
    static_assert(std::is_trivially_copyable_v<value>, "elements must be trivially copyable");
    return {ISTHMUS_UINT8, sizeof(value), false};
  }
}

}  // namespace detail
}  // namespace isthmus

#endif
