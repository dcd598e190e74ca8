#include "backends/hierarchical/convert.hpp"

#include <array>

#include "base/formats.inc.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

enum class datatype_class : std::uint8_t { SIGNED, UNSIGNED, FLOATING };

constexpr std::array<datatype_class, ISTHMUS_DATATYPE_COUNT> datatype_classes{
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) datatype_class::kind,
#include <isthmus/collectives.def>
};

template <typename Format>
void widen_all(const void* source, float* destination, std::uint64_t count) {
  const auto* elements = static_cast<const typename Format::storage*>(source);
  for (std::uint64_t i = 0; i < count; ++i) destination[i] = static_cast<float>(Format::load(elements[i]));
}

template <typename Format>
void narrow_all(const float* source, void* destination, std::uint64_t count) {
  auto* elements = static_cast<typename Format::storage*>(destination);
  for (std::uint64_t i = 0; i < count; ++i)
    elements[i] = Format::store(static_cast<typename Format::accumulator>(source[i]));
}

}  // namespace

isthmus_datatype accumulation_type(isthmus_datatype datatype, isthmus_reduction_op op) {
  const bool is_rounded = op != ISTHMUS_MIN && op != ISTHMUS_MAX;
  const bool is_narrow =
      datatype_classes[datatype] == datatype_class::FLOATING && bytes_of(datatype) < sizeof(float);
  return is_narrow && is_rounded ? ISTHMUS_FLOAT32 : datatype;
}

void widen(const void* source, isthmus_datatype datatype, void* destination, std::uint64_t count) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind)                                                              \
  case ISTHMUS_##NAME:                                                                                         \
    return widen_all<formats::datatype_format<ISTHMUS_##NAME>::type>(source, static_cast<float*>(destination), \
                                                                     count);
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
}

void narrow(const void* source, isthmus_datatype datatype, void* destination, std::uint64_t count) {
  switch (datatype) {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind)                                                        \
  case ISTHMUS_##NAME:                                                                                   \
    return narrow_all<formats::datatype_format<ISTHMUS_##NAME>::type>(static_cast<const float*>(source), \
                                                                      destination, count);
#include <isthmus/collectives.def>
    case ISTHMUS_DATATYPE_COUNT: break;
  }
}

}  // namespace isthmus::hierarchical
