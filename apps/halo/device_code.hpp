// Device code of the kernels, for both ways of compiling them (apps/common/kernel.hpp). It includes no headers.
#ifndef HALO_DEVICE_CODE_HPP
#define HALO_DEVICE_CODE_HPP

namespace halo {

// A diffusion step on cells with one layer of ghosts; `x` and `xy` are the strides of lines and planes. With 6
// neighbors a cell keeps one half and each neighbor contributes one twelfth. With 26 the weights are the
// products of 1/4, 1/2, 1/4 in each dimension.
struct stencil_weights {
  unsigned long x, xy;
  unsigned neighbors;

  static float line(const float* center) { return 0.25f * center[-1] + 0.5f * center[0] + 0.25f * center[1]; }
  float plane(const float* center) const {
    return 0.25f * line(center - x) + 0.5f * line(center) + 0.25f * line(center + x);
  }
  float apply(const float* center) const {
    if (neighbors == 26) return 0.25f * plane(center - xy) + 0.5f * plane(center) + 0.25f * plane(center + xy);
    const float sum_of_neighbors = center[-1] + center[1] + center[-static_cast<long>(x)] + center[x] +
                                   center[-static_cast<long>(xy)] + center[xy];
    return 0.5f * center[0] + sum_of_neighbors * (1.0f / 12);
  }
};

// The inner cells, which have no ghost neighbors, or all cells. row: (y, z) of `lines` lines, column: x.
struct stencil {
  static constexpr const char* name = "halo::stencil";
  stencil_weights weights;
  unsigned lines;
  unsigned long first;  // cell
  void operator()(unsigned long row, unsigned long column, const float* source, float* destination) const {
    const unsigned r = static_cast<unsigned>(row);
    const unsigned long cell = first + r / lines * weights.xy + r % lines * weights.x + column;
    destination[cell] = weights.apply(source + cell);
  }
};

// The remaining cells, from a list.
struct shell {
  static constexpr const char* name = "halo::shell";
  stencil_weights weights;
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const float* source,
                  float* destination) const {
    destination[cells[column]] = weights.apply(source + cells[column]);
  }
};

struct pack {
  static constexpr const char* name = "halo::pack";
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const float* source,
                  float* destination) const {
    destination[column] = source[cells[column]];
  }
};

struct unpack {
  static constexpr const char* name = "halo::unpack";
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const float* source,
                  float* destination) const {
    destination[cells[column]] = source[column];
  }
};

}  // namespace halo

#endif
