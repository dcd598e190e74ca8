// What the kernels compute, for both ways of compiling them (apps/common/kernel.hpp): it includes nothing.
#ifndef TRANSPOSE_DEVICE_CODE_HPP
#define TRANSPOSE_DEVICE_CODE_HPP

namespace transpose {

// One exchange turns a local array from[outer][a][b][c * parts] into to[outer][c][b][a * parts]: the last
// dimension, of which every rank has all, is cut and the second one gathered.
struct block_extent {
  unsigned outer, a, b, c, parts;
};

// Block q of `to`, for rank q, is [outer][b][c][a]. So the turn itself happens in pieces that stay in a cache,
// and unpack copies runs.
struct pack {
  static constexpr const char* name = "transpose::pack";
  block_extent extent;
  // row: (q, outer, b, a), column: c
  void operator()(unsigned long row, unsigned long column, const unsigned long* from, unsigned long* to) const {
    const unsigned r = static_cast<unsigned>(row);
    const unsigned long i = r % extent.a, block = r / extent.a, j = r / extent.a % extent.b;
    const unsigned long o = r / extent.a / extent.b % extent.outer, q = r / extent.a / extent.b / extent.outer;
    const unsigned long source = ((o * extent.a + i) * extent.b + j) * extent.c * extent.parts + q * extent.c;
    to[(block * extent.c + column) * extent.a + i] = from[source + column];
  }
};

// The blocks of all ranks into place.
struct unpack {
  static constexpr const char* name = "transpose::unpack";
  block_extent extent;
  // row: (outer, c, b, q), column: a
  void operator()(unsigned long row, unsigned long column, const unsigned long* from, unsigned long* to) const {
    const unsigned r = static_cast<unsigned>(row);
    const unsigned long q = r % extent.parts, j = r / extent.parts % extent.b, k = r / extent.parts / extent.b % extent.c;
    const unsigned long o = r / extent.parts / extent.b / extent.c;
    const unsigned long source = (((q * extent.outer + o) * extent.b + j) * extent.c + k) * extent.a;
    to[row * extent.a + column] = from[source + column];
  }
};

}  // namespace transpose

#endif
