// What the preloaded library and its engine agree on.
#pragma once

#include <cstddef>

namespace isthmus::nccl_shim {

using any_function = void (*)();

// What the engine is given: the program's own NCCL. NULL: that version has no such function.
struct engine_host {
  std::size_t struct_bytes;
  any_function (*find_real)(const char* name);
};

// The engine's function for a name of NCCL; NULL: it takes none of its calls.
struct engine_table {
  std::size_t struct_bytes;
  any_function (*find)(const char* name);
};

// The one symbol of the engine: `const engine_table* isthmus_nccl_engine_v1(const engine_host*)`; NULL where it
// can't work with that NCCL.
inline constexpr const char* engine_symbol = "isthmus_nccl_engine_v1";

}  // namespace isthmus::nccl_shim
