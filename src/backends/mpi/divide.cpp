#include "backends/mpi/divide.hpp"

#include <type_traits>

#include "base/formats.inc.hpp"

namespace isthmus::mpi {
namespace {

template <typename Value>
Value quotient(Value value, int n) {
  if constexpr (std::is_floating_point_v<Value>) return value / static_cast<Value>(n);
  if constexpr (std::is_unsigned_v<Value>) return static_cast<Value>(value / static_cast<std::uint64_t>(n));
  return static_cast<Value>(value / static_cast<std::int64_t>(n));
}

template <typename Format>
void divide_all(void* data, std::uint64_t count, int n) {
  auto* elements = static_cast<typename Format::storage*>(data);
  for (std::uint64_t i = 0; i < count; ++i) elements[i] = Format::store(quotient(Format::load(elements[i]), n));
}

}  // namespace

void divide(void* data, std::uint64_t count, isthmus_datatype datatype, int n) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME: return divide_all<formats::datatype_format<ISTHMUS_##NAME>::type>(data, count, n);
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
}

}  // namespace isthmus::mpi
