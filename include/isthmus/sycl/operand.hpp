// Operands: the memory that a collective reads or writes. An operand is one of
//
//   T*                               USM (or, on the host platform, any host pointer)
//   sycl::buffer<T, D>               the whole buffer, in row-major order
//   at_offset(buffer, offset)        the buffer from element `offset` of that order
//   as_datatype(datatype, operand)   the same memory as another datatype; counts are then in elements of it
//   nullptr                          on ranks that do not use the operand (recv of reduce, except on root)
//
// The datatype follows from T; see element_of. Memory of a const T cannot be a receive operand.
#ifndef ISTHMUS_SYCL_OPERAND_HPP
#define ISTHMUS_SYCL_OPERAND_HPP

#include <cstddef>
#include <functional>
#include <isthmus/sycl/types.hpp>
#include <optional>

namespace isthmus {

/// The result of at_offset(): a part of a buffer. Holds a copy of the buffer object, which refers to
/// the same buffer.
template <typename T, int Dimensions, typename Allocator>
struct buffer_part {
  sycl::buffer<T, Dimensions, Allocator> buffer;
  const void* identity;
  std::size_t offset;
};

/// Returns an operand for the elements of `buffer` from `offset`, which counts elements of T in row-major
/// order, for buffers of any dimension. The count of the call determines how many elements are used. The call
/// checks that they lie in the buffer.
/// @code
/// // one row of a sycl::buffer<double, 2>
/// ranks.broadcast(queue, isthmus::at_offset(grid, row * columns), columns, 0);
/// @endcode
/// @param buffer A buffer with SYCL's default allocator.
/// @param offset The number of elements to skip.
/// @return An operand.
template <typename T, int Dimensions, typename Allocator>
buffer_part<T, Dimensions, Allocator> at_offset(const sycl::buffer<T, Dimensions, Allocator>& buffer,
                                                std::size_t offset) {
  return {buffer, &buffer, offset};
}

/// The result of as_datatype().
template <typename Inner>
struct typed_operand {
  datatype type;
  Inner inner;
};

/// Treats the memory of `inner` as elements of `type`. Use it for void pointers and for types that Isthmus does
/// not know. Counts and displacements of the call are then in elements of `type`. If one operand of a call uses
/// it, the other one must use it with the same type.
/// @code
/// struct point { float x, y, z; };
/// ranks.allreduce(queue, isthmus::as_datatype(isthmus::datatype::float32, points), 3 * count);
/// @endcode
/// @param type The datatype of the memory.
/// @param inner Any other operand; const memory stays read-only.
/// @return An operand.
template <typename Inner>
typed_operand<std::decay_t<Inner>> as_datatype(datatype type, Inner&& inner) {
  return {type, std::forward<Inner>(inner)};
}

namespace detail {

/// A type-erased operand: an address or a byte buffer, and the layout of its elements.
struct erased_operand {
  void* pointer = nullptr;
  std::optional<byte_buffer> buffer;
  const void* identity = nullptr;          // the user's buffer object, to distinguish its sub-buffers
  std::uint64_t offset_bytes = 0;          // into the buffer
  std::optional<element_layout> elements;  // nullopt: a nullptr operand
  // Migrates a multidimensional buffer in its own shape to a queue's device; returns the command.
  std::function<sycl::event(sycl::queue&)> migrate = {};
};

template <typename X>
struct operand_traits;  // value: element type, const included; make: creates the operand

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

/// An operand that this rank does not use.
template <>
struct operand_traits<std::nullptr_t> {
  using value = void;
  static erased_operand make(std::nullptr_t) { return {}; }
};

/// Creates an operand for a buffer as bytes, starting at element `offset`. The reinterpreted buffer shares the
/// memory and the dependencies of the original.
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
  // DPC++ 2026.2 rejects copies between host and device if they have accessed the buffer
  // with different dimensions.
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
  // A tag type. Explicitly typed operands match each other at compile time, and their datatypes are compared
  // at run time.
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

// Excludes arrays: if an array is bound to a const reference, it is no longer known whether it was const.
template <typename X>
concept operand_like = !std::is_array_v<std::remove_reference_t<X>> &&
                       requires(const std::decay_t<X>& x) { traits_of<X>::make(x); };

// Excludes plain void*, whose elements are unknown.
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

/// An operand that can be read. Its datatype must be known. Excludes void pointers without as_datatype(). Also
/// excludes arrays, because their constness is unknown; pass &values[0] instead.
template <typename X>
concept send_operand = detail::operand_like<X> && detail::has_elements<X>;

/// An operand that can be written: a send_operand that is not const.
template <typename X>
concept recv_operand = send_operand<X> && !std::is_const_v<detail::value_of<X>>;

/// The send and receive operands of a call have the same element type, ignoring const. as_datatype() matches
/// as_datatype(), and nullptr matches everything.
template <typename Send, typename Recv>
concept matching_operands = detail::is_null_operand<Send> || detail::is_null_operand<Recv> ||
                            (detail::is_typed<std::decay_t<Send>> && detail::is_typed<std::decay_t<Recv>>) ||
                            std::is_same_v<std::remove_const_t<detail::value_of<Send>>, detail::value_of<Recv>>;

/// Elements that Isthmus can reduce: numbers, sycl::half, bfloat16, or as_datatype(). Use as_datatype() for
/// structs or vectors of them.
template <typename X>
concept reducible_operand = detail::is_reducible_operand<X>();

}  // namespace isthmus

#endif
