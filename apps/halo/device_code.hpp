// What the kernels compute, for both ways of compiling them (apps/common/kernel.hpp): it includes nothing.
#ifndef HALO_DEVICE_CODE_HPP
#define HALO_DEVICE_CODE_HPP

namespace halo {

// A step of diffusion on cells with a layer of ghosts; `x` and `xy` are the distances of lines and planes. With
// 6 neighbours the cell keeps a half and each of them gives a twelfth. With 26 the weights are the products of
// 1/4, 1/2, 1/4 in each dimension.
struct weights {
  unsigned long x, xy;
  unsigned neighbours;

  static float line(const float* at) { return 0.25f * at[-1] + 0.5f * at[0] + 0.25f * at[1]; }
  float plane(const float* at) const { return 0.25f * line(at - x) + 0.5f * line(at) + 0.25f * line(at + x); }
  float apply(const float* at) const {
    if (neighbours == 26) return 0.25f * plane(at - xy) + 0.5f * plane(at) + 0.25f * plane(at + xy);
    const float around =
        at[-1] + at[1] + at[-static_cast<long>(x)] + at[x] + at[-static_cast<long>(xy)] + at[xy];
    return 0.5f * at[0] + around * (1.0f / 12);
  }
};

// Cells that have no ghost around them, or all. row: (y, z) of `lines` lines, column: x.
struct stencil {
  static constexpr const char* name = "halo::stencil";
  weights of;
  unsigned lines;
  unsigned long first;  // cell
  void operator()(unsigned long row, unsigned long column, const float* from, float* to) const {
    const unsigned r = static_cast<unsigned>(row);
    const unsigned long cell = first + r / lines * of.xy + r % lines * of.x + column;
    to[cell] = of.apply(from + cell);
  }
};

// The other ones, from a list.
struct shell {
  static constexpr const char* name = "halo::shell";
  weights of;
  void operator()(unsigned long, unsigned long column, const unsigned* cells, const float* from,
                  float* to) const {
    to[cells[column]] = of.apply(from + cells[column]);
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
