// Conversions of float16 and bfloat16 to float32 and back on the host, with hardware instructions if available.
#pragma once

#include <isthmus/types.h>

#include <cstddef>

namespace isthmus::fused {

// out[i] = in[i], exactly. `type`: float16, bfloat16 or float32.
void widen(isthmus_datatype type, const void* in, float* out, std::size_t count) noexcept;

// out[i] = in[i], rounded to nearest even.
void narrow(isthmus_datatype type, const float* in, void* out, std::size_t count) noexcept;

}  // namespace isthmus::fused
