// Device code of the kernels, for both ways of compiling them (apps/common/kernel.hpp). It includes no headers.
#ifndef TRANSPOSE_DEVICE_CODE_HPP
#define TRANSPOSE_DEVICE_CODE_HPP

namespace transpose {

// One exchange turns a local array source[outer][a][b][c * parts] into destination[outer][c][b][a * parts]: the
// last dimension, which every rank has completely, is divided, and the second one is gathered.
struct block_extent {
  unsigned outer, a, b, c, parts;
};

// Block q of the result, for rank q, is [outer][b][c][a]. The transpose itself thus works on pieces that fit a
// cache, and unpack copies contiguous runs.
struct pack {
  static constexpr const char* name = "transpose::pack";
  block_extent extent;
  // row: (q, outer, b, a), column: c
  void operator()(unsigned long row, unsigned long column, const unsigned long* source,
                  unsigned long* destination) const {
    const unsigned r = static_cast<unsigned>(row);
    const unsigned long i = r % extent.a, block = r / extent.a, j = r / extent.a % extent.b;
    const unsigned long o = r / extent.a / extent.b % extent.outer, q = r / extent.a / extent.b / extent.outer;
    const unsigned long first = ((o * extent.a + i) * extent.b + j) * extent.c * extent.parts + q * extent.c;
    destination[(block * extent.c + column) * extent.a + i] = source[first + column];
  }
};

// Copies the blocks of all ranks into place.
struct unpack {
  static constexpr const char* name = "transpose::unpack";
  block_extent extent;
  // row: (outer, c, b, q), column: a
  void operator()(unsigned long row, unsigned long column, const unsigned long* source,
                  unsigned long* destination) const {
    const unsigned r = static_cast<unsigned>(row);
    const unsigned long q = r % extent.parts, j = r / extent.parts % extent.b,
                        k = r / extent.parts / extent.b % extent.c;
    const unsigned long o = r / extent.parts / extent.b / extent.c;
    const unsigned long first = (((q * extent.outer + o) * extent.b + j) * extent.c + k) * extent.a;
    destination[row * extent.a + column] = source[first + column];
  }
};

}  // namespace transpose

#endif
