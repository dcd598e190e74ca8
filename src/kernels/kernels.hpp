// CPU kernels, compiled once per instruction set: reductions of several arrays into one, for every datatype and
// operation of the collective table, and copies of cache lines.
#pragma once

#include <isthmus/types.h>

#include <cstddef>

namespace isthmus::cpu {

// out[i] = sources[0][i] (op) ... (op) sources[n-1][i], combined in this order in the accumulation type and
// rounded once; avg divides by n. n >= 1. `out` can be equal to any source; other overlap is not allowed.
using reduce_function = void (*)(void* out, const void* const* sources, int n, std::size_t count);

// Kind of store instructions: through the cache, or non-temporal if the processor supports it.
enum class store_mode { cached, streaming };

struct copy_range {
  std::byte* destination;
  const std::byte* source;
  std::size_t bytes;
};

inline constexpr std::size_t max_copy_streams = 3;

// Copies the first `bytes` (a multiple of the 64-byte cache line) of each of 1 to max_copy_streams ranges,
// interleaved. For streaming stores, destinations must be aligned to lines, and only streaming_fence orders the
// stores before later ones.
using copy_function = void (*)(const copy_range* ranges, std::size_t streams, std::size_t bytes,
                               store_mode mode);

// The kernels for one instruction set.
struct kernel_table {
  const char* name;
  copy_function copy_lines;
  reduce_function reduce[ISTHMUS_DATATYPE_COUNT][ISTHMUS_REDUCTION_OP_COUNT];
};

// Returns the best table that this processor supports.
const kernel_table& kernels() noexcept;

// Returns all tables that this processor supports, best first, NULL-terminated. For tests.
const kernel_table* const* usable_kernels() noexcept;

}  // namespace isthmus::cpu
