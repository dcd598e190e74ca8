// What the kernels compute, for both ways of compiling them (apps/common/kernel.hpp): it includes nothing.
#ifndef HALO_DEVICE_CODE_HPP
#define HALO_DEVICE_CODE_HPP

namespace halo {

// A step of diffusion on cells with a layer of ghosts; `x` and `xy` are the distances of lines and planes. With
// 6 neighbors the cell keeps a half and each of them gives a twelfth. With 26 the weights are the products of
// 1/4, 1/2, 1/4 in each dimension.
struct stencil_weights {
  unsigned long x, xy;
  unsigned neighbors;

  static float line(const float* center) { return 0.25f * center[-1] + 0.5f * center[0] + 0.25f * center[1]; }
  float plane(const float* center) const { return 0.25f * line(center - x) + 0.5f * line(center) + 0.25f * line(center + x); }
  float apply(const float* center) const {
    if (neighbors == 26) return 0.25f * plane(center - xy) + 0.5f * plane(center) + 0.25f * plane(center + xy);
    const float sum_of_neighbors =
        center[-1] + center[1] + center[-static_cast<long>(x)] + center[x] + center[-static_cast<long>(xy)] + center[xy];
    return 0.5f * center[0] + sum_of_neighbors * (1.0f / 12);
  }
};

// Cells that have no ghost around them, or all. row: (y, z) of `lines` lines, column: x.
struct stencil {
  static constexpr const char* name = "halo::stencil";
  stencil_weights weights;
  unsigned lines;
  unsigned long first;  // cell
  void operator()(unsigned long row, unsigned long column, const float* from, float* to) const {
    const unsigned r = static_cast<unsigned>(row);
    const unsigned long cell = first + r / lines * weights.xy + r % lines * weights.x + column;
    to[cell] = weights.apply(from + cell);
  }
};

// The other ones, from a list.
struct shell {
  static constexpr const char* name = "halo::shell";
  stencil_weights weights;
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const float* from,
                  float* to) const {
    to[cells[column]] = weights.apply(from + cells[column]);
  }
};

struct pack {
  static constexpr const char* name = "halo::pack";
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const float* from,
                  float* to) const {
    to[column] = from[cells[column]];
  }
};

struct unpack {
  static constexpr const char* name = "halo::unpack";
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const float* from,
                  float* to) const {
    to[cells[column]] = from[column];
  }
};

}  // namespace halo

#endif
