// One call of one collective, described so that a line of text reproduces it. Everything that is not
// written down (data, uneven counts, misalignment) follows from `seed`.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/inputs.hpp"
#include "oracle/movement.hpp"

namespace conformance {

struct test_case {
  isthmus_collective collective = ISTHMUS_ALLREDUCE;
  isthmus_datatype datatype = ISTHMUS_FLOAT32;
  isthmus_reduction_op op = ISTHMUS_SUM;
  std::uint64_t count = 0;
  int root = 0;  // also the distance to the next rank in rings of send and recv
  bool in_place = false;
  bool heap = false;     // buffers in the symmetric heap
  bool special = false;  // NaN, infinities, largest, subnormal and zero among the inputs
  std::uint64_t seed = 1;
};

// "allreduce/float32/sum/count=17/root=0/in_place=1/heap=0/special=0/seed=5". parse throws
// std::invalid_argument.
std::string to_string(const test_case& test);
test_case parse(std::string_view text);

// The call among `size` ranks: v-variants get uneven counts, some of them zero, with gaps between blocks.
oracle::operation_shape shape_of(const test_case& test, int size);
oracle::input_spec source_of(const test_case& test);

// The columns of THE TABLE that generate cases.
bool reduces(isthmus_collective collective);
bool has_root(isthmus_collective collective);
bool can_be_in_place(isthmus_collective collective);
const char* name_of(isthmus_collective collective);

// Collectives that cases are generated for: all rows; send stands for a ring of send and recv.
std::vector<isthmus_collective> collectives();

}  // namespace conformance
