#include "comd/material.hpp"

#include <cmath>
#include <random>

namespace comd {

namespace {

constexpr double atomic_mass = 103.642696;  // eV fs^2 / angstrom^2
constexpr double boltzmann = 8.617333e-5;   // eV / K
constexpr double temperature = 600;

}  // namespace

// Lennard-Jones with the copper-like constants of the CoMD proxy application, or Sutton and Chen's
// constants for copper.
material::material(const std::string& potential)
    : is_embedded(potential == "eam"),
      lattice(is_embedded ? 3.61 : 3.615),
      cutoff(is_embedded ? 2 * lattice : 2.5 * sigma),
      mass(63.55 * atomic_mass),
      epsilon(is_embedded ? 0.012382 : 0.167) {}

double material::lennard_jones_shift() const {
  const double s6 = std::pow(sigma / cutoff, 6);
  return 4 * epsilon * s6 * (s6 - 1);
}

tail material::tail_of(int power) const {
  const double value_at_cutoff = std::pow(lattice / cutoff, power);
  return {value_at_cutoff, -power / cutoff * value_at_cutoff};
}

double material::lattice_energy() const {
  const int reach = static_cast<int>(2 * cutoff / lattice) + 1;
  const tail ninth = tail_of(9), sixth = tail_of(6);
  double pairs = 0, repulsion = 0, rho = 0;
  for (int i = -reach; i <= reach; ++i)
    for (int j = -reach; j <= reach; ++j)
      for (int k = -reach; k <= reach; ++k) {
        const double r = 0.5 * lattice * std::sqrt(i * i + j * j + k * k);
        if ((i + j + k) % 2 != 0 || r == 0 || r >= cutoff) continue;
        pairs += 4 * epsilon * (std::pow(sigma / r, 12) - std::pow(sigma / r, 6)) - lennard_jones_shift();
        repulsion += std::pow(lattice / r, 9) - ninth.value_at_cutoff - (r - cutoff) * ninth.slope_at_cutoff;
        rho += std::pow(lattice / r, 6) - sixth.value_at_cutoff - (r - cutoff) * sixth.slope_at_cutoff;
      }
  return is_embedded ? epsilon * (repulsion / 2 - c * std::sqrt(rho)) : pairs / 2;
}

crystal::crystal(const material& copper, const std::array<std::uint64_t, 3>& unit_cells, std::uint32_t seed) {
  constexpr double basis[4][3] = {
      {0.25, 0.25, 0.25}, {0.25, 0.75, 0.75}, {0.75, 0.25, 0.75}, {0.75, 0.75, 0.25}};
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0, std::sqrt(copper.mass * boltzmann * temperature));
  std::array<double, 3> total{};
  for (std::uint64_t k = 0; k < unit_cells[2]; ++k)
    for (std::uint64_t j = 0; j < unit_cells[1]; ++j)
      for (std::uint64_t i = 0; i < unit_cells[0]; ++i)
        for (const auto& site : basis) {
          positions.push_back({(static_cast<double>(i) + site[0]) * copper.lattice,
                               (static_cast<double>(j) + site[1]) * copper.lattice,
                               (static_cast<double>(k) + site[2]) * copper.lattice});
          momenta.push_back({normal(engine), normal(engine), normal(engine)});
          for (std::size_t d = 0; d < 3; ++d) total.at(d) += momenta.back().at(d);
        }
  for (auto& momentum : momenta)
    for (std::size_t d = 0; d < 3; ++d) momentum.at(d) -= total.at(d) / static_cast<double>(momenta.size());
}

}  // namespace comd
