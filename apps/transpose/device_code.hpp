// What the kernels compute, for both ways of compiling them (apps/common/kernel.hpp): it includes nothing.
#ifndef TRANSPOSE_DEVICE_CODE_HPP
#define TRANSPOSE_DEVICE_CODE_HPP

namespace transpose {

// One exchange turns a local array from[outer][a][b][c * parts] into to[outer][c][b][a * parts]: the last
// dimension, of which every rank has all, is cut and the second one gathered.
struct extent {
  unsigned outer, a, b, c, parts;
};

// Block q of `to`, for rank q, is [outer][b][c][a]. So the turn itself happens in pieces that stay in a cache,
// and unpack copies runs.
struct pack {
  static constexpr const char* name = "transpose::pack";
  extent of;
  // row: (q, outer, b, a), column: c
  void operator()(unsigned long row, unsigned long column, const unsigned long* from, unsigned long* to) const {
    const unsigned r = static_cast<unsigned>(row);
    const unsigned long i = r % of.a, block = r / of.a, j = r / of.a % of.b;
    const unsigned long o = r / of.a / of.b % of.outer, q = r / of.a / of.b / of.outer;
    const unsigned long source = ((o * of.a + i) * of.b + j) * of.c * of.parts + q * of.c;
    to[(block * of.c + column) * of.a + i] = from[source + column];
  }
};

// The blocks of all ranks into place.
struct unpack {
  static constexpr const char* name = "transpose::unpack";
  extent of;
  // row: (outer, c, b, q), column: a
  void operator()(unsigned long row, unsigned long column, const unsigned long* from, unsigned long* to) const {
    const unsigned r = static_cast<unsigned>(row);
    const unsigned long q = r % of.parts, j = r / of.parts % of.b, k = r / of.parts / of.b % of.c;
    const unsigned long o = r / of.parts / of.b / of.c;
    const unsigned long source = (((q * of.outer + o) * of.b + j) * of.c + k) * of.a;
    to[row * of.a + column] = from[source + column];
  }
};

}  // namespace transpose

#endif
