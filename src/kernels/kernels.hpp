// What is compiled once per instruction set: reduction of several arrays into one, for every datatype and
// operation of THE TABLE, and copies of cache lines.
#pragma once

#include <isthmus/types.h>

#include <cstddef>

namespace isthmus::cpu {

// out[i] = sources[0][i] (op) ... (op) sources[n-1][i], combined in this order in the accumulation type
// and rounded once; avg divides by n. n >= 1. `out` may equal any source, other overlap is not allowed.
using reduce_function = void (*)(void* out, const void* const* sources, int n, std::size_t count);

// How memory is written: through the cache, or past it where the processor can do that.
enum class store_mode { cached, streaming };

struct copy_range {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

inline constexpr std::size_t copied_streams = 3;

// Copies the first `bytes`, whole lines of 64, of 1 to `copied_streams` pieces side by side. Where streaming,
// `to` is aligned to lines, and the stores are ordered before later ones only by streaming_fence.
using copy_function = void (*)(const copy_range* pieces, std::size_t streams, std::size_t bytes, store_mode mode);

// One instruction set's kernels.
struct kernel_table {
  const char* name;
  copy_function copy_lines;
  reduce_function reduce[ISTHMUS_DATATYPE_COUNT][ISTHMUS_REDUCTION_OP_COUNT];
};

extern const kernel_table baseline_kernels;

// The best table that this processor can run; decided once.
const kernel_table& kernels() noexcept;

// All tables that this processor can run, best first, and NULL: for tests.
const kernel_table* const* usable_kernels() noexcept;

}  // namespace isthmus::cpu
