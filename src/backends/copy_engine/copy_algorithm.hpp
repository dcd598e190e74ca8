// The algorithms of the copy_engine backend. Rules name them after "copy_engine:".
#pragma once

#include <cstdint>

namespace isthmus::copy_engine {

// Each algorithm defines which rank copies, and between which buffers:
//   staged: readers fetch from the staging slots of the sources
//   zero_copy: readers fetch from the user buffers of the sources
//   push: sources write to the user buffers of the readers
//   reduce: sources write to the staging slots of the readers, where a kernel combines the data. It has no name
//     for rules because it is the only algorithm of reduce_scatter.
enum class copy_algorithm : std::uint8_t { staged, zero_copy, push, reduce };

}  // namespace isthmus::copy_engine
