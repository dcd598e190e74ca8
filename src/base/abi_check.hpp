// Compares declarations of functions with a vendor's header, at compile time.
#pragma once

#include <type_traits>

namespace isthmus {

// The same type as the calling convention sees it: enumerations are ints, pointers are pointers.
template <typename Type>
struct abi_type {
  using type = std::conditional_t<std::is_pointer_v<Type>, const void*,
                                  std::conditional_t<std::is_enum_v<Type>, int, std::remove_cv_t<Type>>>;
};

// CUDA's driver spells addresses of devices as `unsigned long long` (sizes are size_t, another type).
template <typename Ours, typename Theirs>
constexpr bool is_device_address = std::is_pointer_v<Ours> && std::is_same_v<Theirs, unsigned long long> &&
                                   sizeof(void*) == sizeof(unsigned long long);

// A small structure passed by value is the same when its size and alignment are.
template <typename Ours, typename Theirs>
constexpr bool is_same_structure() {
  if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>)
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);
  else
    return false;
}

template <typename Ours, typename Theirs>
constexpr bool same_argument = std::is_same_v<typename abi_type<Ours>::type, typename abi_type<Theirs>::type> ||
                               is_device_address<Ours, Theirs> || is_same_structure<Ours, Theirs>();

template <typename Ours, typename Theirs>
struct same_function : std::false_type {};

template <typename Result, typename... Arguments, typename NativeResult, typename... NativeArguments>
struct same_function<Result (*)(Arguments...), NativeResult (*)(NativeArguments...)> {
  template <bool SameCount>
  static constexpr bool compare() {
    if constexpr (SameCount)
      return same_argument<Result, NativeResult> && (same_argument<Arguments, NativeArguments> && ...);
    else
      return false;
  }
  static constexpr bool value = compare<sizeof...(Arguments) == sizeof...(NativeArguments)>();
};

// True when a pointer of type `Ours` may call the function `theirs`.
template <typename Ours, typename Theirs>
constexpr bool calls(Theirs) {
  return same_function<Ours, Theirs>::value;
}

}  // namespace isthmus
