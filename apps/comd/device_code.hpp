// Device code of the kernels, for both ways of compiling them (apps/common/kernel.hpp). It includes no headers.
#ifndef COMD_DEVICE_CODE_HPP
#define COMD_DEVICE_CODE_HPP

namespace comd {

// Atoms are stored in cells: those of this rank and one layer of ghosts. A cell's record has `head` doubles
// (the number of atoms, and how many of them have left it) and one line of `slots` per field.
constexpr unsigned long head = 8, fields = 7, results = 5;
enum field : unsigned long { id, x, y, z, px, py, pz };
enum result : unsigned long { fx, fy, fz, energy, slope };

struct box {
  double length[3], inverse_edge[3];  // length of the box; inverse edge of a cell
  int cells[3], first[3];             // of the box; this rank's first cell
  unsigned line, plane;               // cell strides, including ghosts
  unsigned long slots;

  unsigned long stride() const { return head + fields * slots; }
  // Positions lie in the box, so all ranks assign an atom to the same cell.
  int bin(unsigned d, double coordinate) const {
    const int cell = static_cast<int>(coordinate * inverse_edge[d]);
    return cell < cells[d] ? cell : cells[d] - 1;
  }
  // Returns true if an atom belongs to the given cell.
  bool is_home(unsigned cell, double atom_x, double atom_y, double atom_z) const {
    return bin(0, atom_x) == first[0] + static_cast<int>(cell % line) - 1 &&
           bin(1, atom_y) == first[1] + static_cast<int>(cell % plane / line) - 1 &&
           bin(2, atom_z) == first[2] + static_cast<int>(cell / plane) - 1;
  }
  double wrap(unsigned d, double coordinate) const {
    if (coordinate >= length[d]) coordinate -= length[d];
    if (coordinate < 0) coordinate += length[d];
    return coordinate < length[d] ? coordinate : 0;  // a tiny negative position was rounded up to the length
  }
  double nearest(unsigned d, double distance) const {
    if (distance > 0.5 * length[d]) return distance - length[d];
    if (distance < -0.5 * length[d]) return distance + length[d];
    return distance;
  }
  static unsigned long count(const double* record) { return static_cast<unsigned long>(record[0]); }
  // The n-th of the 27 cells around a cell, itself included.
  unsigned around(unsigned cell, unsigned n) const {
    return cell + (n / 9 - 1) * plane + (n / 3 % 3 - 1) * line + n % 3 - 1;
  }
};

// Half a velocity step. row: own cell.
struct kick {
  static constexpr const char* name = "comd::kick";
  box cells;
  double half_dt;
  void operator()(unsigned long row, unsigned long, const unsigned* own, const double* forces,
                  double* atoms) const {
    double* const record = atoms + own[row] * cells.stride();
    const double* const force = forces + own[row] * results * cells.slots;
    const unsigned long count = box::count(record);
    for (unsigned d = 0; d < 3; ++d)
      for (unsigned long i = 0; i < count; ++i)
        record[head + (px + d) * cells.slots + i] += half_dt * force[d * cells.slots + i];
  }
};

// A position step with periodic boundaries; counts the atoms that leave their cell. row: own cell.
struct drift {
  static constexpr const char* name = "comd::drift";
  box cells;
  double dt_over_mass;
  void operator()(unsigned long row, unsigned long, const unsigned* own, double* atoms) const {
    double* const record = atoms + own[row] * cells.stride();
    const unsigned long count = box::count(record);
    unsigned leaving = 0;
    for (unsigned long i = 0; i < count; ++i) {
      double atom_position[3];
      for (unsigned d = 0; d < 3; ++d) {
        double& position = record[head + (x + d) * cells.slots + i];
        position = cells.wrap(d, position + dt_over_mass * record[head + (px + d) * cells.slots + i]);
        atom_position[d] = position;
      }
      leaving += cells.is_home(own[row], atom_position[0], atom_position[1], atom_position[2]) ? 0 : 1;
    }
    record[1] = leaving;
  }
};

// Every own cell takes its atoms from the cells around it, in the order of their ids, so that sums over them
// have the same bits for any number of ranks. This is how atoms migrate: their old cell, perhaps on another
// rank, omits them. row: own cell.
struct rebin {
  static constexpr const char* name = "comd::rebin";
  box cells;
  void operator()(unsigned long row, unsigned long, const unsigned* own, const double* old_atoms,
                  double* new_atoms) const {
    double* const target = new_atoms + own[row] * cells.stride();
    unsigned long count = 0;
    for (unsigned n = 0; n < 27; ++n) {
      const unsigned cell = cells.around(own[row], n);
      const double* const source = old_atoms + cell * cells.stride();
      const bool is_own = cell == own[row];
      if (!is_own && source[1] == 0) continue;
      for (unsigned long i = 0; i < box::count(source); ++i) {
        const double* const atom = source + head + i;
        if (source[1] != 0 &&
            !cells.is_home(own[row], atom[x * cells.slots], atom[y * cells.slots], atom[z * cells.slots]))
          continue;
        if (count < cells.slots) insert(target, count++, atom);  // verify() detects an atom that does not fit
      }
    }
    target[0] = static_cast<double>(count);
    target[1] = 0;
  }

  void insert(double* record, unsigned long count, const double* atom) const {
    unsigned long place = count;
    for (; place > 0 && record[head + place - 1] > atom[0]; --place)
      for (unsigned long f = 0; f < fields; ++f)
        record[head + f * cells.slots + place] = record[head + f * cells.slots + place - 1];
    for (unsigned long f = 0; f < fields; ++f) record[head + f * cells.slots + place] = atom[f * cells.slots];
  }
};

// Copies parts of cells to a message and back. row: list entry, column: double within the part.
struct pack {
  static constexpr const char* name = "comd::pack";
  unsigned long stride, first, width;
  void operator()(unsigned long row, unsigned long column, const unsigned* cells, const double* source,
                  double* destination) const {
    destination[row * width + column] = source[cells[row] * stride + first + column];
  }
};

struct unpack {
  static constexpr const char* name = "comd::unpack";
  unsigned long stride, first, width;
  void operator()(unsigned long row, unsigned long column, const unsigned* cells, const double* source,
                  double* destination) const {
    destination[cells[row] * stride + first + column] = source[row * width + column];
  }
};

// Calls visit(dx, dy, dz, r2, cell, j) for every atom within the cutoff of atom i of a cell, in an order that
// does not depend on ranks or transport.
template <typename Visit>
inline void each_pair(const box& cells, double cutoff2, unsigned cell, unsigned long i, const double* atoms,
                      const Visit& visit) {
  const double* const atom = atoms + cell * cells.stride() + head + i;
  const double atom_position[3] = {atom[x * cells.slots], atom[y * cells.slots], atom[z * cells.slots]};
  for (unsigned n = 0; n < 27; ++n) {
    const unsigned other = cells.around(cell, n);
    const double* const record = atoms + other * cells.stride();
    const unsigned long count = box::count(record);
    for (unsigned long j = 0; j < count; ++j) {
      const double dx = cells.nearest(0, atom_position[0] - record[head + x * cells.slots + j]);
      const double dy = cells.nearest(1, atom_position[1] - record[head + y * cells.slots + j]);
      const double dz = cells.nearest(2, atom_position[2] - record[head + z * cells.slots + j]);
      const double r2 = dx * dx + dy * dy + dz * dz;
      if (r2 < cutoff2 && (other != cell || j != i)) visit(dx, dy, dz, r2, other, j);
    }
  }
}

// The Lennard-Jones potential, shifted to 0 at the cutoff. row: own cell, column: slot.
struct lennard_jones {
  static constexpr const char* name = "comd::lennard_jones";
  box cells;
  double cutoff2, sigma2, epsilon, shift;
  void operator()(unsigned long row, unsigned long i, const unsigned* own, const double* atoms,
                  double* forces) const {
    if (i >= box::count(atoms + own[row] * cells.stride())) return;
    double sum[4] = {};
    each_pair(cells, cutoff2, own[row], i, atoms,
              [&](double dx, double dy, double dz, double r2, unsigned, unsigned long) {
                const double s2 = sigma2 / r2, s6 = s2 * s2 * s2;
                const double push = 24 * epsilon * s6 * (2 * s6 - 1) / r2;
                sum[fx] += push * dx;
                sum[fy] += push * dy;
                sum[fz] += push * dz;
                sum[energy] += 0.5 * (4 * epsilon * s6 * (s6 - 1) - shift);
              });
    double* const result = forces + own[row] * results * cells.slots + i;
    for (unsigned long f = 0; f < 4; ++f) result[f * cells.slots] = sum[f];
  }
};

// A power (a/r)^n whose value and slope are 0 at the cutoff.
struct tail {
  double value_at_cutoff, slope_at_cutoff;
};

// Sutton and Chen's potential for copper (Philosophical Magazine Letters 61, 1990): pairs repel with epsilon
// (a/r)^9, and an atom in the density rho = sum (a/r)^6 has the energy -epsilon c sqrt(rho).
struct embedded_atom {
  box cells;
  double cutoff, a, epsilon, c;
  tail ninth, sixth;
};

struct density {
  static constexpr const char* name = "comd::density";
  embedded_atom potential;
  void operator()(unsigned long row, unsigned long i, const unsigned* own, const double* atoms,
                  double* forces) const {
    const box& cells = potential.cells;
    if (i >= box::count(atoms + own[row] * cells.stride())) return;
    double repulsion = 0, rho = 0;
    each_pair(cells, potential.cutoff * potential.cutoff, own[row], i, atoms,
              [&](double, double, double, double r2, unsigned, unsigned long) {
                const double r = __builtin_sqrt(r2), q = potential.a / r, q3 = q * q * q,
                             excess = r - potential.cutoff;
                repulsion +=
                    q3 * q3 * q3 - potential.ninth.value_at_cutoff - excess * potential.ninth.slope_at_cutoff;
                rho += q3 * q3 - potential.sixth.value_at_cutoff - excess * potential.sixth.slope_at_cutoff;
              });
    double* const result = forces + own[row] * results * cells.slots + i;
    const double root = __builtin_sqrt(rho);
    result[energy * cells.slots] = potential.epsilon * (0.5 * repulsion - potential.c * root);
    result[slope * cells.slots] = -0.5 * potential.epsilon * potential.c / root;
  }
};

struct embedding {
  static constexpr const char* name = "comd::embedding";
  embedded_atom potential;
  void operator()(unsigned long row, unsigned long i, const unsigned* own, const double* atoms,
                  double* forces) const {
    const box& cells = potential.cells;
    if (i >= box::count(atoms + own[row] * cells.stride())) return;
    const unsigned long stride = results * cells.slots;
    const double slope_value = forces[own[row] * stride + slope * cells.slots + i];
    double sum[3] = {};
    each_pair(cells, potential.cutoff * potential.cutoff, own[row], i, atoms,
              [&](double dx, double dy, double dz, double r2, unsigned cell, unsigned long j) {
                const double r = __builtin_sqrt(r2), q = potential.a / r, q3 = q * q * q;
                const double repulsion =
                    potential.epsilon * (-9 * q3 * q3 * q3 / r - potential.ninth.slope_at_cutoff);
                const double slopes = slope_value + forces[cell * stride + slope * cells.slots + j];
                const double push =
                    -(repulsion + slopes * (-6 * q3 * q3 / r - potential.sixth.slope_at_cutoff)) / r;
                sum[0] += push * dx;
                sum[1] += push * dy;
                sum[2] += push * dz;
              });
    for (unsigned d = 0; d < 3; ++d) forces[own[row] * stride + d * cells.slots + i] = sum[d];
  }
};

// Sums of atoms, kinetic and potential energy: every column sums some of the cells, then one kernel
// sums the columns.
constexpr unsigned long partial_sums = 64, quantities = 3;
struct sum_cells {
  static constexpr const char* name = "comd::sum_cells";
  box cells;
  double mass;
  unsigned cell_count;
  void operator()(unsigned long, unsigned long column, const unsigned* own, const double* atoms,
                  const double* forces, double* partial) const {
    double count = 0, kinetic = 0, potential = 0;
    for (unsigned long n = column; n < cell_count; n += partial_sums) {
      const double* const record = atoms + own[n] * cells.stride();
      count += record[0];
      for (unsigned long i = 0; i < box::count(record); ++i) {
        for (unsigned d = 0; d < 3; ++d) {
          const double p = record[head + (px + d) * cells.slots + i];
          kinetic += p * p / (2 * mass);
        }
        potential += forces[(own[n] * results + energy) * cells.slots + i];
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
