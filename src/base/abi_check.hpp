// Compile-time checks that function pointer types match the declarations of a vendor header.
#pragma once

#include <type_traits>

namespace isthmus {

// The type that the calling convention sees: enumerations become int, and all pointers become the same type.
template <typename Type>
struct abi_type {
  using type = std::conditional_t<std::is_pointer_v<Type>, const void*,
                                  std::conditional_t<std::is_enum_v<Type>, int, std::remove_cv_t<Type>>>;
};

// The CUDA driver declares device addresses as `unsigned long long`. Sizes are declared as size_t, which is
// a distinct type.
template <typename Declared, typename Native>
constexpr bool is_device_address = std::is_pointer_v<Declared> && std::is_same_v<Native, unsigned long long> &&
                                   sizeof(void*) == sizeof(unsigned long long);

// Structures passed by value are considered equal if their size and alignment match.
template <typename Declared, typename Native>
constexpr bool is_same_structure() {
  if constexpr (std::is_class_v<Declared> && std::is_class_v<Native>)
    return sizeof(Declared) == sizeof(Native) && alignof(Declared) == alignof(Native);
  else
    return false;
}

template <typename Declared, typename Native>
constexpr bool is_same_argument =
    std::is_same_v<typename abi_type<Declared>::type, typename abi_type<Native>::type> ||
    is_device_address<Declared, Native> || is_same_structure<Declared, Native>();

template <typename Declared, typename Native>
struct is_same_function : std::false_type {};

template <typename Result, typename... Arguments, typename NativeResult, typename... NativeArguments>
struct is_same_function<Result (*)(Arguments...), NativeResult (*)(NativeArguments...)> {
  template <bool SameCount>
  static constexpr bool compare() {
    if constexpr (SameCount)
      return is_same_argument<Result, NativeResult> && (is_same_argument<Arguments, NativeArguments> && ...);
    else
      return false;
  }
  static constexpr bool value = compare<sizeof...(Arguments) == sizeof...(NativeArguments)>();
};

// Stands for a function or constant that a header does not declare. It matches everything.
struct undeclared {
  template <typename Value>
  friend constexpr bool operator==(Value, undeclared) {
    return true;
  }
};

// Returns true if a pointer of type `Declared` can call a function of type `Native`.
template <typename Declared, typename Native>
constexpr bool matches_abi(Native) {
  return std::is_same_v<Native, undeclared> || is_same_function<Declared, Native>::value;
}

}  // namespace isthmus
