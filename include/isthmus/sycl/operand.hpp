// What a collective reads or writes. An operand is one of
//
//   T*                      USM (or, on the host platform, any host pointer)
//   sycl::buffer<T, D>      from its first element, in row-major order whatever its dimension
//   at_offset(buffer, offset)      from element `offset` of that order
//   as_datatype(datatype, operand)   the same memory as another datatype; counts are then in elements of it
//   nullptr                 where this rank has no part in it (the receive buffer of a reduce off root)
//
// The datatype follows from T; see element_of. A const T is never received into.
#ifndef ISTHMUS_SYCL_OPERAND_HPP
#define ISTHMUS_SYCL_OPERAND_HPP

#include <cstddef>
#include <functional>
#include <isthmus/sycl/types.hpp>
#include <optional>

namespace isthmus {

/// What at_offset() makes: a part of a buffer. Holds a copy of the buffer object, which is the same buffer.
template <typename T, int Dimensions, typename Allocator>
struct buffer_part {
  sycl::buffer<T, Dimensions, Allocator> buffer;
  const void* identity;
  std::size_t offset;
};

/// The elements of `buffer` from `offset` on, counted in elements of T in row-major order whatever its
/// dimension. How many of them a call uses follows from its count; the call checks that they lie in the buffer.
/// @code
/// ranks.broadcast(queue, isthmus::at_offset(grid, row * columns), columns, 0);  // one row of a sycl::buffer<double,
/// 2>
/// @endcode
/// @param buffer A buffer with SYCL's default allocator.
/// @param offset Elements to leave out.
/// @return An operand.
template <typename T, int Dimensions, typename Allocator>
buffer_part<T, Dimensions, Allocator> at_offset(const sycl::buffer<T, Dimensions, Allocator>& buffer,
                                         std::size_t offset) {
  return {buffer, &buffer, offset};
}

/// What as_datatype() makes.
template <typename Inner>
struct typed_operand {
  datatype type;
  Inner inner;
};

/// The memory of `inner` as elements of `type`: void pointers, or types that THE TABLE does not know. Counts
/// and displacements of the call are then in elements of `type`. Both operands of a call need it, with the same
/// type.
/// @code
/// struct point { float x, y, z; };
/// ranks.allreduce(queue, isthmus::as_datatype(isthmus::datatype::float32, points), 3 * count);
/// @endcode
/// @param type What the memory holds.
/// @param inner Any other operand; const memory stays memory that is only read.
/// @return An operand.
template <typename Inner>
typed_operand<std::decay_t<Inner>> as_datatype(datatype type, Inner&& inner) {
  return {type, std::forward<Inner>(inner)};
}

namespace detail {

/// An operand whose C++ type is forgotten: an address or a buffer of bytes, and what its elements are.
struct erased_operand {
  void* pointer = nullptr;
  std::optional<byte_buffer> buffer;
  const void* identity = nullptr;   // the user's buffer object, to tell its sub-buffers apart
  std::uint64_t offset_bytes = 0;   // into the buffer
  std::optional<element_layout> elements;  // none: nullptr
  // Brings a buffer of several dimensions to a queue's device in its own shape; returns the command.
  std::function<sycl::event(sycl::queue&)> migrate = {};
};

template <typename X>
struct operand_traits;  // value: element type with its const; make: the operand

/// USM, or any address on the host platform.
template <typename T>
struct operand_traits<T*> {
  using value = T;
  static erased_operand make(T* pointer) {
    erased_operand operand;
    operand.pointer = const_cast<std::remove_cv_t<T>*>(pointer);
    if constexpr (!std::is_void_v<T>) operand.elements = element_of<T>();
    return operand;
  }
};

/// No memory on this rank.
template <>
struct operand_traits<std::nullptr_t> {
  using value = void;
  static erased_operand make(std::nullptr_t) { return {}; }
};

/// A buffer as bytes from `offset` elements on. Reinterpreting shares the memory and the dependencies.
template <typename T, int Dimensions, typename Allocator>
erased_operand make_buffer_operand(const sycl::buffer<T, Dimensions, Allocator>& buffer, const void* identity,
                            std::size_t offset) {
  auto bytes = buffer.template reinterpret<unsigned char, 1>(sycl::range<1>(buffer.byte_size()));
  static_assert(std::is_same_v<decltype(bytes), byte_buffer>, "buffers must use SYCL's default allocator");
  erased_operand operand;
  operand.buffer = std::move(bytes);
  operand.identity = identity;
  operand.offset_bytes = offset * sizeof(T);
  operand.elements = element_of<T>();
  // DPC++ 2026.2 refuses to copy between host and device where the two saw a buffer in different dimensions.
  if constexpr (Dimensions > 1 && !has_ordered_native_commands) {
    operand.migrate = [buffer](sycl::queue& queue) {
      sycl::buffer<T, Dimensions, Allocator> full_buffer = buffer;  // accessors take a non-const reference
      return queue.submit([&](sycl::handler& handler) {
        const sycl::accessor view(full_buffer, handler, sycl::read_write);
        native_enqueue(handler, [view](auto&) {});
      });
    };
  }
  return operand;
}

template <typename T, int Dimensions, typename Allocator>
struct operand_traits<sycl::buffer<T, Dimensions, Allocator>> {
  using value = T;
  static erased_operand make(const sycl::buffer<T, Dimensions, Allocator>& buffer) {
    return make_buffer_operand(buffer, &buffer, 0);
  }
};

template <typename T, int Dimensions, typename Allocator>
struct operand_traits<buffer_part<T, Dimensions, Allocator>> {
  using value = T;
  static erased_operand make(const buffer_part<T, Dimensions, Allocator>& part) {
    return make_buffer_operand(part.buffer, part.identity, part.offset);
  }
};

template <typename Inner>
struct operand_traits<typed_operand<Inner>> {
  // A marker type: explicit operands match each other at compile time and are compared when called.
  struct explicitly_typed {};
  using value = std::conditional_t<std::is_const_v<typename operand_traits<Inner>::value>,
                                   const explicitly_typed, explicitly_typed>;
  static erased_operand make(const typed_operand<Inner>& typed) {
    erased_operand operand = operand_traits<Inner>::make(typed.inner);
    operand.elements = element_layout{static_cast<isthmus_datatype>(typed.type)};
    return operand;
  }
};

template <typename X>
using traits_of = operand_traits<std::decay_t<X>>;

template <typename X>
using value_of = typename traits_of<X>::value;

template <typename X>
inline constexpr bool is_typed = false;
template <typename Inner>
inline constexpr bool is_typed<typed_operand<Inner>> = true;

template <typename X>
inline constexpr bool is_null_operand = std::is_same_v<std::decay_t<X>, std::nullptr_t>;

// Not an array: bound to a reference to const it no longer says whether it was const.
template <typename X>
concept operand_like = !std::is_array_v<std::remove_reference_t<X>> &&
                       requires(const std::decay_t<X>& x) { traits_of<X>::make(x); };

// A plain void* says nothing about its elements.
template <typename X>
concept has_elements = is_null_operand<X> || is_typed<std::decay_t<X>> || !std::is_void_v<value_of<X>>;

template <typename X>
constexpr bool is_reducible_operand() {
  if constexpr (is_null_operand<X> || is_typed<std::decay_t<X>>) {
    return true;
  } else {
    return element_of<value_of<X>>().is_reducible;
  }
}

}  // namespace detail

/// What may be read: any operand whose datatype is known. Not a void pointer without as_datatype(), and not an array,
/// which cannot say whether it was const: pass &values[0].
template <typename X>
concept send_operand = detail::operand_like<X> && detail::has_elements<X>;

/// What may be written: a send_operand that is not const.
template <typename X>
concept recv_operand = send_operand<X> && !std::is_const_v<detail::value_of<X>>;

/// Send and receive operand of one call hold the same elements, const apart; as_datatype() matches as_datatype(), and nullptr
/// everything.
template <typename Send, typename Recv>
concept matching_operands = detail::is_null_operand<Send> || detail::is_null_operand<Recv> ||
                            (detail::is_typed<std::decay_t<Send>> && detail::is_typed<std::decay_t<Recv>>) ||
                            std::is_same_v<std::remove_const_t<detail::value_of<Send>>, detail::value_of<Recv>>;

/// Elements that THE TABLE can combine: numbers, sycl::half, bfloat16, or as_datatype(). Use as_datatype(datatype, ...) for a
/// struct or vector of them.
template <typename X>
concept reducible_operand = detail::is_reducible_operand<X>();

}  // namespace isthmus

#endif
