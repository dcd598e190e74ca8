#include "backends/mpi/divide.hpp"

#include <type_traits>

#include "base/formats.inc.hpp"

namespace isthmus::mpi {
namespace {

template <typename Value>
Value quotient(Value value, int divisor) {
  if constexpr (std::is_floating_point_v<Value>) return value / static_cast<Value>(divisor);
  if constexpr (std::is_unsigned_v<Value>)
    return static_cast<Value>(value / static_cast<std::uint64_t>(divisor));
  return static_cast<Value>(value / static_cast<std::int64_t>(divisor));
}

template <typename Format>
void divide_elements(void* data, std::uint64_t count, int divisor) {
  auto* elements = static_cast<typename Format::storage*>(data);
  for (std::uint64_t i = 0; i < count; ++i)
    elements[i] = Format::store(quotient(Format::load(elements[i]), divisor));
}

}  // namespace

void divide(void* data, std::uint64_t count, isthmus_datatype datatype, int divisor) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME:                            \
    return divide_elements<formats::datatype_format<ISTHMUS_##NAME>::type>(data, count, divisor);
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
}

}  // namespace isthmus::mpi
