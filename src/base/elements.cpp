#include "base/elements.hpp"

#include <type_traits>

#include "base/formats.inc.hpp"
#include "base/tables.hpp"

namespace isthmus {
namespace {

// Calls `function` with a value of the type that converts the elements.
template <typename Function>
void with_format(isthmus_datatype datatype, Function&& function) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME: return function(formats::datatype_format<ISTHMUS_##NAME>::type{});
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
}

template <typename Value>
Value quotient(Value value, int divisor) {
  if constexpr (std::is_floating_point_v<Value>) return value / static_cast<Value>(divisor);
  if constexpr (std::is_unsigned_v<Value>)
    return static_cast<Value>(value / static_cast<std::uint64_t>(divisor));
  return static_cast<Value>(value / static_cast<std::int64_t>(divisor));
}

}  // namespace

void divide(void* data, std::uint64_t count, isthmus_datatype datatype, int divisor) {
  with_format(datatype, [=]<typename Format>(Format) {
    auto* elements = static_cast<typename Format::storage*>(data);
    for (std::uint64_t i = 0; i < count; ++i)
      elements[i] = Format::store(quotient(Format::load(elements[i]), divisor));
  });
}

isthmus_datatype accumulation_type(isthmus_datatype datatype, isthmus_reduction_op op) {
  const bool is_rounded = op != ISTHMUS_MIN && op != ISTHMUS_MAX;
  bool is_narrow = false;
  with_format(datatype, [&]<typename Format>(Format) {
    is_narrow = std::is_floating_point_v<typename Format::accumulator> && bytes_of(datatype) < sizeof(float);
  });
  return is_narrow && is_rounded ? ISTHMUS_FLOAT32 : datatype;
}

void widen(const void* source, isthmus_datatype datatype, void* destination, std::uint64_t count) {
  with_format(datatype, [=]<typename Format>(Format) {
    const auto* elements = static_cast<const typename Format::storage*>(source);
    auto* sums = static_cast<float*>(destination);
    for (std::uint64_t i = 0; i < count; ++i) sums[i] = static_cast<float>(Format::load(elements[i]));
  });
}

void narrow(const void* source, isthmus_datatype datatype, void* destination, std::uint64_t count) {
  with_format(datatype, [=]<typename Format>(Format) {
    const auto* sums = static_cast<const float*>(source);
    auto* elements = static_cast<typename Format::storage*>(destination);
    for (std::uint64_t i = 0; i < count; ++i)
      elements[i] = Format::store(static_cast<typename Format::accumulator>(sums[i]));
  });
}

}  // namespace isthmus
