// The crystal and its potential, with properties that are known without a simulation. Units: angstrom, eV, fs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "comd/device_code.hpp"

namespace comd {

struct material {
  explicit material(const std::string& potential);  // "lj" or "eam"

  bool is_embedded;
  double sigma = 2.315;    // of Lennard-Jones
  double lattice, cutoff;  // edge of a unit cell of 4 atoms
  double mass;             // eV fs^2 / angstrom^2
  double epsilon;          // of Lennard-Jones, or of Sutton and Chen
  double c = 39.432;

  double lennard_jones_shift() const;
  tail tail_of(int power) const;
  // The potential energy of an atom in the perfect crystal, summed over the lattice.
  double lattice_energy() const;
};

// The atoms of a box of unit cells at their lattice positions, with random momenta of 600 K that sum to 0.
// Equal on every rank.
struct crystal {
  crystal(const material& copper, const std::array<std::uint64_t, 3>& unit_cells, std::uint32_t seed);
  std::vector<std::array<double, 3>> positions, momenta;
};

}  // namespace comd
