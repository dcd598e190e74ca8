// Device code of the kernels, for both ways of compiling them (apps/common/kernel.hpp). It includes no headers.
#ifndef PARRES_DEVICE_CODE_HPP
#define PARRES_DEVICE_CODE_HPP

namespace parres {

// Copies the transposed tile for rank q out of a square matrix of `order` rows, of which a rank has
// `columns` columns. Adds one to each element that is sent, for the next step. row: (q, own column), column:
// row within the tile
struct take_tiles {
  static constexpr const char* name = "parres::take_tiles";
  unsigned long order, columns;
  void operator()(unsigned long row, unsigned long column, double* source, double* destination) const {
    const unsigned long q = row / columns, j = row % columns, i = q * columns + column;
    destination[i * columns + j] = source[j * order + i];
    source[j * order + i] += 1.0;
  }
};

// row: (own column, q), column: row within the tile
struct add_tiles {
  static constexpr const char* name = "parres::add_tiles";
  unsigned long order, columns;
  void operator()(unsigned long row, unsigned long column, const double* source, double* destination) const {
    const unsigned long parts = order / columns, j = row / parts, q = row % parts;
    destination[j * order + q * columns + column] += source[(q * columns + j) * columns + column];
  }
};

// The star stencil of the Parallel Research Kernels: a cell at distance `j` along an axis has the weight 1/(2 j
// radius), negative on the lower side. row and column: the computed cells.
struct star {
  static constexpr const char* name = "parres::star";
  unsigned long from_first, from_pitch, to_first, to_pitch;
  int radius;
  void operator()(unsigned long row, unsigned long column, const double* source, double* destination) const {
    const double* at = source + from_first + row * from_pitch + column;
    double sum = 0;
    for (int j = 1; j <= radius; ++j) {
      const long line = j * static_cast<long>(from_pitch);
      sum += (at[j] - at[-j] + at[line] - at[-line]) / (2.0 * j * radius);
    }
    destination[to_first + row * to_pitch + column] += sum;
  }
};

struct increment {
  static constexpr const char* name = "parres::increment";
  unsigned long first, pitch;
  void operator()(unsigned long row, unsigned long column, double* cells) const {
    cells[first + row * pitch + column] += 1.0;
  }
};

// Copies cells to and from messages, by a list of cells.
struct pack {
  static constexpr const char* name = "parres::pack";
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const double* source,
                  double* destination) const {
    destination[column] = source[cells[column]];
  }
};

struct unpack {
  static constexpr const char* name = "parres::unpack";
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const double* source,
                  double* destination) const {
    destination[cells[column]] = source[column];
  }
};

}  // namespace parres

#endif
