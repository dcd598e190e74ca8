#include "operators/fused/host/convert.hpp"

#include <cstring>

#include "base/formats.inc.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace isthmus::fused {
namespace {

using formats::bfloat16_format;
using half_format = formats::datatype_format<ISTHMUS_FLOAT16>::type;

template <typename Format>
void widen_all(const std::uint16_t* in, float* out, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) out[i] = Format::load(in[i]);
}

template <typename Format>
void narrow_all(const float* in, std::uint16_t* out, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) out[i] = Format::store(in[i]);
}

#if defined(__x86_64__)
bool has_half_instructions() noexcept {
  static const bool has_instructions = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has_instructions;
}

__attribute__((target("avx,f16c"))) void widen_half(const std::uint16_t* in, float* out,
                                                    std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  widen_all<half_format>(in + i, out + i, count - i);
}

__attribute__((target("avx,f16c"))) void narrow_half(const float* in, std::uint16_t* out,
                                                     std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
  narrow_all<half_format>(in + i, out + i, count - i);
}
#else
bool has_half_instructions() noexcept { return false; }
void widen_half(const std::uint16_t* in, float* out, std::size_t count) noexcept {
  widen_all<half_format>(in, out, count);
}
void narrow_half(const float* in, std::uint16_t* out, std::size_t count) noexcept {
  narrow_all<half_format>(in, out, count);
}
#endif

}  // namespace

void widen(isthmus_datatype type, const void* in, float* out, std::size_t count) noexcept {
  const auto* small = static_cast<const std::uint16_t*>(in);
  if (type == ISTHMUS_FLOAT32)
    std::memcpy(out, in, count * sizeof *out);
  else if (type == ISTHMUS_BFLOAT16)
    widen_all<bfloat16_format>(small, out, count);
  else if (has_half_instructions())
    widen_half(small, out, count);
  else
    widen_all<half_format>(small, out, count);
}

void narrow(isthmus_datatype type, const float* in, void* out, std::size_t count) noexcept {
  auto* small = static_cast<std::uint16_t*>(out);
  if (type == ISTHMUS_FLOAT32)
    std::memcpy(out, in, count * sizeof *in);
  else if (type == ISTHMUS_BFLOAT16)
    narrow_all<bfloat16_format>(in, small, count);
  else if (has_half_instructions())
    narrow_half(in, small, count);
  else
    narrow_all<half_format>(in, small, count);
}

}  // namespace isthmus::fused
