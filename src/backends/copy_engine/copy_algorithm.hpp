// The algorithms, under the names that a rule may give behind "copy_engine:".
#pragma once

#include <cstdint>

namespace isthmus::copy_engine {

// Who copies, from where to where. staged: readers fetch from the sources' staging slots; zero_copy: out of the
// sources' own buffers; push: sources put into the readers' own buffers; reduce: into the readers' staging
// slots, where they are combined. The last has no name of its own: it is all that reduce_scatter has.
enum class copy_algorithm : std::uint8_t { staged, zero_copy, push, reduce };

}  // namespace isthmus::copy_engine
