// The interface between the preloaded library and its engine.
#pragma once

#include <cstddef>

namespace isthmus::nccl_shim {

using any_function = void (*)();

// Functions that the preloaded library provides: lookup in the program's own NCCL. Returns NULL if that version
// does not have the function.
struct engine_host {
  std::size_t struct_bytes;
  any_function (*find_real)(const char* name);
};

// Functions that the engine provides: lookup of its replacement for an NCCL function. Returns NULL if the
// engine does not replace it.
struct engine_table {
  std::size_t struct_bytes;
  any_function (*find)(const char* name);
};

// The only exported symbol of the engine: `const engine_table* isthmus_nccl_engine_v1(const engine_host*)`.
// Returns NULL if the engine cannot work with that NCCL.
inline constexpr const char* engine_symbol = "isthmus_nccl_engine_v1";

}  // namespace isthmus::nccl_shim
