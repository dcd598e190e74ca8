// What the kernels compute, for both ways of compiling them (apps/common/kernel.hpp): it includes nothing.
#ifndef COMD_DEVICE_CODE_HPP
#define COMD_DEVICE_CODE_HPP

namespace comd {

// Atoms lie in cells, those of this rank and a layer of ghosts. A cell's record is `head` doubles (how many
// atoms it has, and how many of them have left it) and one line of `slots` for each field.
constexpr unsigned long head = 8, fields = 7, results = 5;
enum field : unsigned long { id, x, y, z, px, py, pz };
enum result : unsigned long { fx, fy, fz, energy, slope };

struct box {
  double length[3], inverse_edge[3];  // of the whole box; of a cell
  int cells[3], first[3];             // of the whole box; this rank's first
  unsigned line, plane;               // distances of cells, ghosts included
  unsigned long slots;

  unsigned long stride() const { return head + fields * slots; }
  // Positions lie in the box, so all ranks bin an atom alike.
  int bin(unsigned d, double at) const {
    const int cell = static_cast<int>(at * inverse_edge[d]);
    return cell < cells[d] ? cell : cells[d] - 1;
  }
  // Whether an atom belongs to one of this rank's cells.
  bool is_home(unsigned cell, double at_x, double at_y, double at_z) const {
    return bin(0, at_x) == first[0] + static_cast<int>(cell % line) - 1 &&
           bin(1, at_y) == first[1] + static_cast<int>(cell % plane / line) - 1 &&
           bin(2, at_z) == first[2] + static_cast<int>(cell / plane) - 1;
  }
  double wrap(unsigned d, double at) const {
    if (at >= length[d]) at -= length[d];
    if (at < 0) at += length[d];
    return at < length[d] ? at : 0;  // a tiny negative one was rounded up
  }
  double nearest(unsigned d, double distance) const {
    if (distance > 0.5 * length[d]) return distance - length[d];
    if (distance < -0.5 * length[d]) return distance + length[d];
    return distance;
  }
  static unsigned long count(const double* record) { return static_cast<unsigned long>(record[0]); }
  // Of the 27 cells around one, itself included.
  unsigned around(unsigned cell, unsigned n) const {
    return cell + (n / 9 - 1) * plane + (n / 3 % 3 - 1) * line + n % 3 - 1;
  }
};

// Half a step of velocities, and after it a step of positions. row: own cell.
struct kick {
  static constexpr const char* name = "comd::kick";
  box in;
  double half_dt;
  void operator()(unsigned long row, unsigned long, const unsigned* own, const double* forces,
                  double* atoms) const {
    double* const record = atoms + own[row] * in.stride();
    const double* const force = forces + own[row] * results * in.slots;
    const unsigned long count = box::count(record);
    for (unsigned d = 0; d < 3; ++d)
      for (unsigned long i = 0; i < count; ++i)
        record[head + (px + d) * in.slots + i] += half_dt * force[d * in.slots + i];
  }
};

struct drift {
  static constexpr const char* name = "comd::drift";
  box in;
  double dt_over_mass;
  void operator()(unsigned long row, unsigned long, const unsigned* own, double* atoms) const {
    double* const record = atoms + own[row] * in.stride();
    const unsigned long count = box::count(record);
    unsigned leaving = 0;
    for (unsigned long i = 0; i < count; ++i) {
      double at[3];
      for (unsigned d = 0; d < 3; ++d) {
        double& position = record[head + (x + d) * in.slots + i];
        position = in.wrap(d, position + dt_over_mass * record[head + (px + d) * in.slots + i]);
        at[d] = position;
      }
      leaving += in.is_home(own[row], at[0], at[1], at[2]) ? 0 : 1;
    }
    record[1] = leaving;
  }
};

// Every own cell takes the atoms that belong to it from the cells around, in the order of their ids, so that
// sums over them have the same bits on any number of ranks. So atoms migrate: their old cell, perhaps another
// rank's, leaves them out. row: own cell.
struct rebin {
  static constexpr const char* name = "comd::rebin";
  box in;
  void operator()(unsigned long row, unsigned long, const unsigned* own, const double* from, double* to) const {
    double* const target = to + own[row] * in.stride();
    unsigned long count = 0;
    for (unsigned n = 0; n < 27; ++n) {
      const unsigned cell = in.around(own[row], n);
      const double* const source = from + cell * in.stride();
      const bool is_own = cell == own[row];
      if (!is_own && source[1] == 0) continue;
      for (unsigned long i = 0; i < box::count(source); ++i) {
        const double* const atom = source + head + i;
        if (source[1] != 0 && !in.is_home(own[row], atom[x * in.slots], atom[y * in.slots], atom[z * in.slots]))
          continue;
        if (count < in.slots) insert(target, count++, atom);  // the sum of atoms shows one that has no place
      }
    }
    target[0] = static_cast<double>(count);
    target[1] = 0;
  }

  void insert(double* record, unsigned long count, const double* atom) const {
    unsigned long place = count;
    for (; place > 0 && record[head + place - 1] > atom[0]; --place)
      for (unsigned long f = 0; f < fields; ++f)
        record[head + f * in.slots + place] = record[head + f * in.slots + place - 1];
    for (unsigned long f = 0; f < fields; ++f) record[head + f * in.slots + place] = atom[f * in.slots];
  }
};

// Parts of cells to a message and back. row: entry of the list, column: double of the part.
struct pack {
  static constexpr const char* name = "comd::pack";
  unsigned long stride, first, width;
  void operator()(unsigned long row, unsigned long column, const unsigned* cells, const double* from,
                  double* to) const {
    to[row * width + column] = from[cells[row] * stride + first + column];
  }
};

struct unpack {
  static constexpr const char* name = "comd::unpack";
  unsigned long stride, first, width;
  void operator()(unsigned long row, unsigned long column, const unsigned* cells, const double* from,
                  double* to) const {
    to[cells[row] * stride + first + column] = from[row * width + column];
  }
};

// Calls visit(dx, dy, dz, r2, cell, j) for every atom within the cutoff of atom i of a cell, in an order that
// depends on neither ranks nor transport.
template <typename Visit>
inline void each_pair(const box& in, double cutoff2, unsigned cell, unsigned long i, const double* atoms,
                      const Visit& visit) {
  const double* const mine = atoms + cell * in.stride() + head + i;
  const double at[3] = {mine[x * in.slots], mine[y * in.slots], mine[z * in.slots]};
  for (unsigned n = 0; n < 27; ++n) {
    const unsigned other = in.around(cell, n);
    const double* const record = atoms + other * in.stride();
    const unsigned long count = box::count(record);
    for (unsigned long j = 0; j < count; ++j) {
      const double dx = in.nearest(0, at[0] - record[head + x * in.slots + j]);
      const double dy = in.nearest(1, at[1] - record[head + y * in.slots + j]);
      const double dz = in.nearest(2, at[2] - record[head + z * in.slots + j]);
      const double r2 = dx * dx + dy * dy + dz * dz;
      if (r2 < cutoff2 && (other != cell || j != i)) visit(dx, dy, dz, r2, other, j);
    }
  }
}

// Lennard-Jones, moved so that it ends at 0 at the cutoff. row: own cell, column: slot.
struct lennard_jones {
  static constexpr const char* name = "comd::lennard_jones";
  box in;
  double cutoff2, sigma2, epsilon, shift;
  void operator()(unsigned long row, unsigned long i, const unsigned* own, const double* atoms,
                  double* forces) const {
    if (i >= box::count(atoms + own[row] * in.stride())) return;
    double sum[4] = {};
    each_pair(in, cutoff2, own[row], i, atoms,
              [&](double dx, double dy, double dz, double r2, unsigned, unsigned long) {
                const double s2 = sigma2 / r2, s6 = s2 * s2 * s2;
                const double push = 24 * epsilon * s6 * (2 * s6 - 1) / r2;
                sum[fx] += push * dx;
                sum[fy] += push * dy;
                sum[fz] += push * dz;
                sum[energy] += 0.5 * (4 * epsilon * s6 * (s6 - 1) - shift);
              });
    double* const mine = forces + own[row] * results * in.slots + i;
    for (unsigned long f = 0; f < 4; ++f) mine[f * in.slots] = sum[f];
  }
};

// A power (a/r)^n that ends at the cutoff with value and slope 0.
struct tail {
  double at_cutoff, slope_at_cutoff;
};

// Sutton and Chen's potential for copper (Philosophical Magazine Letters 61, 1990): the pairs repel with
// epsilon (a/r)^9, and an atom in the density rho = sum (a/r)^6 has -epsilon c sqrt(rho).
struct embedded_atom {
  box in;
  double cutoff, a, epsilon, c;
  tail ninth, sixth;
};

struct density {
  static constexpr const char* name = "comd::density";
  embedded_atom potential;
  void operator()(unsigned long row, unsigned long i, const unsigned* own, const double* atoms,
                  double* forces) const {
    const box& in = potential.in;
    if (i >= box::count(atoms + own[row] * in.stride())) return;
    double repulsion = 0, rho = 0;
    each_pair(in, potential.cutoff * potential.cutoff, own[row], i, atoms,
              [&](double, double, double, double r2, unsigned, unsigned long) {
                const double r = __builtin_sqrt(r2), q = potential.a / r, q3 = q * q * q, beyond = r - potential.cutoff;
                repulsion += q3 * q3 * q3 - potential.ninth.at_cutoff - beyond * potential.ninth.slope_at_cutoff;
                rho += q3 * q3 - potential.sixth.at_cutoff - beyond * potential.sixth.slope_at_cutoff;
              });
    double* const mine = forces + own[row] * results * in.slots + i;
    const double root = __builtin_sqrt(rho);
    mine[energy * in.slots] = potential.epsilon * (0.5 * repulsion - potential.c * root);
    mine[slope * in.slots] = -0.5 * potential.epsilon * potential.c / root;
  }
};

struct embedding {
  static constexpr const char* name = "comd::embedding";
  embedded_atom potential;
  void operator()(unsigned long row, unsigned long i, const unsigned* own, const double* atoms,
                  double* forces) const {
    const box& in = potential.in;
    if (i >= box::count(atoms + own[row] * in.stride())) return;
    const unsigned long stride = results * in.slots;
    const double my_slope = forces[own[row] * stride + slope * in.slots + i];
    double sum[3] = {};
    each_pair(in, potential.cutoff * potential.cutoff, own[row], i, atoms,
              [&](double dx, double dy, double dz, double r2, unsigned cell, unsigned long j) {
                const double r = __builtin_sqrt(r2), q = potential.a / r, q3 = q * q * q;
                const double repulsion = potential.epsilon * (-9 * q3 * q3 * q3 / r - potential.ninth.slope_at_cutoff);
                const double slopes = my_slope + forces[cell * stride + slope * in.slots + j];
                const double push = -(repulsion + slopes * (-6 * q3 * q3 / r - potential.sixth.slope_at_cutoff)) / r;
                sum[0] += push * dx;
                sum[1] += push * dy;
                sum[2] += push * dz;
              });
    for (unsigned d = 0; d < 3; ++d) forces[own[row] * stride + d * in.slots + i] = sum[d];
  }
};

// Atoms, kinetic and potential energy: every column sums up some of the cells, and then one all columns.
constexpr unsigned long partial_sums = 64, quantities = 3;
struct sum_cells {
  static constexpr const char* name = "comd::sum_cells";
  box in;
  double mass;
  unsigned cells;
  void operator()(unsigned long, unsigned long column, const unsigned* own, const double* atoms,
                  const double* forces, double* partial) const {
    double count = 0, kinetic = 0, potential = 0;
    for (unsigned long n = column; n < cells; n += partial_sums) {
      const double* const record = atoms + own[n] * in.stride();
      count += record[0];
      for (unsigned long i = 0; i < box::count(record); ++i) {
        for (unsigned d = 0; d < 3; ++d) {
          const double p = record[head + (px + d) * in.slots + i];
          kinetic += p * p / (2 * mass);
        }
        potential += forces[(own[n] * results + energy) * in.slots + i];
      }
    }
    partial[column * quantities] = count;
    partial[column * quantities + 1] = kinetic;
    partial[column * quantities + 2] = potential;
  }
};

struct sum_columns {
  static constexpr const char* name = "comd::sum_columns";
  void operator()(unsigned long, unsigned long quantity, const double* partial, double* sums) const {
    double sum = 0;
    for (unsigned long n = 0; n < partial_sums; ++n) sum += partial[n * quantities + quantity];
    sums[quantity] = sum;
  }
};

}  // namespace comd

#endif
