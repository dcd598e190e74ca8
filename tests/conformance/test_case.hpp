// One call of a collective, in a form that a line of text reproduces. Data, irregular counts and misalignment
// are not listed: they follow from `seed`.
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

// The text form: "allreduce/float32/sum/count=17/root=0/in_place=1/heap=0/special=0/seed=5".
// Errors: parse throws std::invalid_argument.
std::string to_string(const test_case& test);
test_case parse(std::string_view text);

// The call on `size` ranks. v-variants get irregular counts, some of them zero, with gaps between blocks.
oracle::operation_shape shape_of(const test_case& test, int size);
oracle::input_spec source_of(const test_case& test);

// Columns of the collective table that determine the cases.
bool reduces(isthmus_collective collective);
bool has_root(isthmus_collective collective);
bool can_be_in_place(isthmus_collective collective);
const char* name_of(isthmus_collective collective);

// The collectives for which cases are generated: all rows. send represents a ring of send and recv.
std::vector<isthmus_collective> collectives();

}  // namespace conformance
