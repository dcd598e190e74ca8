// What the kernels compute, for both ways of compiling them (apps/common/kernel.hpp): it includes nothing.
#ifndef PARRES_DEVICE_CODE_HPP
#define PARRES_DEVICE_CODE_HPP

namespace parres {

// Of a matrix of `order` rows by columns, of which a rank has `columns`: the tile for rank q, turned. What is
// sent grows by one, for the next time.
// row: (q, own column), column: row within the tile
struct take_tiles {
  static constexpr const char* name = "parres::take_tiles";
  unsigned long order, columns;
  void operator()(unsigned long row, unsigned long column, double* from, double* to) const {
    const unsigned long q = row / columns, j = row % columns, i = q * columns + column;
    to[i * columns + j] = from[j * order + i];
    from[j * order + i] += 1.0;
  }
};

// row: (own column, q), column: row within the tile
struct add_tiles {
  static constexpr const char* name = "parres::add_tiles";
  unsigned long order, columns;
  void operator()(unsigned long row, unsigned long column, const double* from, double* to) const {
    const unsigned long parts = order / columns, j = row / parts, q = row % parts;
    to[j * order + q * columns + column] += from[(q * columns + j) * columns + column];
  }
};

// The star of the Parallel Research Kernels: a cell `j` away along an axis weighs 1/(2 j radius), on the lower
// side its negative. row and column: of the cells computed
struct star {
  static constexpr const char* name = "parres::star";
  unsigned long from_first, from_pitch, to_first, to_pitch;
  int radius;
  void operator()(unsigned long row, unsigned long column, const double* from, double* to) const {
    const double* at = from + from_first + row * from_pitch + column;
    double sum = 0;
    for (int j = 1; j <= radius; ++j) {
      const long line = j * static_cast<long>(from_pitch);
      sum += (at[j] - at[-j] + at[line] - at[-line]) / (2.0 * j * radius);
    }
    to[to_first + row * to_pitch + column] += sum;
  }
};

struct increment {
  static constexpr const char* name = "parres::increment";
  unsigned long first, pitch;
  void operator()(unsigned long row, unsigned long column, double* cells) const {
    cells[first + row * pitch + column] += 1.0;
  }
};

// From and to messages, by a list of cells.
struct pack {
  static constexpr const char* name = "parres::pack";
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const double* from,
                  double* to) const {
    to[column] = from[cells[column]];
  }
};

struct unpack {
  static constexpr const char* name = "parres::unpack";
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const double* from,
                  double* to) const {
    to[cells[column]] = from[column];
  }
};

}  // namespace parres

#endif
