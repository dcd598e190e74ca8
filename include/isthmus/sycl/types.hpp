// C++ spelling of THE TABLE's enumerations, and which of its datatypes a C++ type is.
#ifndef ISTHMUS_SYCL_TYPES_HPP
#define ISTHMUS_SYCL_TYPES_HPP

#include <isthmus/types.h>

#include <concepts>
#include <cstdint>
#include <isthmus/sycl/features.hpp>
#include <type_traits>

namespace isthmus {

/// What elements are, by THE TABLE's names. A C++ type has its own (float is float32); as() is for what has
/// none. Values are those of isthmus_datatype.
enum class datatype {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) name = ISTHMUS_##NAME,
#include <isthmus/collectives.def>
};

/// How elements are combined: sum, prod, min, max, avg. avg is the sum divided by the number of ranks;
/// collectives.def says how each is rounded and wraps. Values are those of isthmus_reduction_op.
enum class reduction_op {
#define ISTHMUS_REDUCTION_OP(name, NAME) name = ISTHMUS_##NAME,
#include <isthmus/collectives.def>
};

namespace detail {

inline constexpr std::size_t datatype_bytes[] = {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) bytes,
#include <isthmus/collectives.def>
};

/// How a value of a C++ type travels: `units` elements of `type`. Types that are not in THE TABLE travel as
/// bytes, which every collective that does not reduce can do.
struct element_layout {
  isthmus_datatype type = ISTHMUS_UINT8;
  std::uint64_t units = 1;  // elements of `type` for one value
  bool is_reducible = true;    // whether THE TABLE can combine them
};

/// The element of T: float32 for float, int32 for int and so on by size and sign; bool, char8_t and
/// enumerations travel as bytes. A type that is not trivially copyable does not compile.
/// constexpr, not consteval: clang 15 loses members of an aggregate that a consteval function returns.
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
