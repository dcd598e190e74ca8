#include "backends/hierarchical/convert.hpp"

#include <array>

#include "base/formats.inc.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

enum class kind : std::uint8_t { SIGNED, UNSIGNED, FLOATING };

constexpr std::array<kind, ISTHMUS_DATATYPE_COUNT> kinds_of_datatypes{
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind_) kind::kind_,
#include <isthmus/collectives.def>
};

template <typename Format>
void widen_all(const void* from, float* to, std::uint64_t count) {
  const auto* elements = static_cast<const typename Format::storage*>(from);
  for (std::uint64_t i = 0; i < count; ++i) to[i] = static_cast<float>(Format::load(elements[i]));
}

template <typename Format>
void narrow_all(const float* from, void* to, std::uint64_t count) {
  auto* elements = static_cast<typename Format::storage*>(to);
  for (std::uint64_t i = 0; i < count; ++i)
    elements[i] = Format::store(static_cast<typename Format::accumulator>(from[i]));
}

}  // namespace

isthmus_datatype accumulation_type(isthmus_datatype datatype, isthmus_reduction_op op) {
  const bool rounds = op != ISTHMUS_MIN && op != ISTHMUS_MAX;
  const bool small = kinds_of_datatypes[datatype] == kind::FLOATING && bytes_of(datatype) < sizeof(float);
  return small && rounds ? ISTHMUS_FLOAT32 : datatype;
}

void widen(const void* from, isthmus_datatype datatype, void* to, std::uint64_t count) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME:                            \
    return widen_all<formats::datatype_format<ISTHMUS_##NAME>::type>(from, static_cast<float*>(to), count);
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
}

void narrow(const void* from, isthmus_datatype datatype, void* to, std::uint64_t count) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) \
  case ISTHMUS_##NAME:                            \
    return narrow_all<formats::datatype_format<ISTHMUS_##NAME>::type>(static_cast<const float*>(from), to, count);
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
}

}  // namespace isthmus::hierarchical
