// CoMD: molecular dynamics of a copper crystal that is divided into blocks of cells. Atoms migrate, and forces
// depend on neighboring cells, so every step exchanges ghost cells twice (three times with embedded atoms).
// Energies are summed over the ranks.
#include <bit>
#include <cmath>
#include <optional>

#include "comd/device_text.hpp"  // generated
#include "comd/material.hpp"
#include "common/application.hpp"
#include "common/blocks.hpp"

namespace comd {

namespace {

using apps::array;
using apps::grid;

constexpr double time_step = 1;             // fs
constexpr int steps_between_energies = 10;  // as in the proxy application
constexpr int steps_with_reference = 3;     // of a run that is compared with a single rank
constexpr double drift_bound = 1e-4;        // relative to the total energy, over a run

// The cells of the whole box and their partition. The cells are the same for any number of ranks.
struct box_geometry {
  std::array<std::uint64_t, 3> cells;
  apps::triple cut;
  unsigned slots;
};

box_geometry geometry_of(const apps::program_options& options, const material& copper, int ranks) {
  const auto cells = [&](std::size_t d, int parts) {
    const double possible = static_cast<double>(options.size.at(d)) * copper.lattice / copper.cutoff;
    return static_cast<std::uint64_t>(possible / parts) * static_cast<unsigned>(parts);
  };
  std::array<double, 3> size{};
  for (std::size_t d = 0; d < 3; ++d) size.at(d) = static_cast<double>(options.size.at(d));
  const apps::triple cut =
      apps::arrange_ranks(size, ranks, [&](std::size_t d, int parts) { return cells(d, parts) >= 3; });
  if (cut[0] == 0) {
    throw apps::bad_argument(
        "--size: " + std::to_string(options.size[0]) + " x " + std::to_string(options.size[1]) + " x " +
        std::to_string(options.size[2]) + " unit cells among " + std::to_string(ranks) +
        " ranks, must be at least 3 cutoffs (" + std::to_string(copper.cutoff) + " angstrom, " +
        std::to_string(copper.cutoff / copper.lattice) +
        " unit cells) in each dimension and one per rank; use a larger size or fewer ranks");
  }
  box_geometry result{{}, cut, 0};
  double atoms = 4;
  for (std::size_t d = 0; d < 3; ++d) {
    result.cells.at(d) = cells(d, cut.at(d));
    atoms *= size.at(d) / static_cast<double>(result.cells.at(d));
  }
  result.slots = 8 * static_cast<unsigned>(std::ceil((1.5 * atoms + 4) / 8));
  return result;
}

std::uint64_t footprint(const apps::program_options& options, int ranks) {
  const box_geometry all = geometry_of(options, material(options.potential), ranks);
  const apps::block own(all.cells, all.cut, 0);
  const std::uint64_t doubles = own.all_cells() * (2 * (head + fields * all.slots) + results * all.slots) * 2;
  return 2 * doubles * sizeof(double) * static_cast<unsigned>(ranks);  // for the program and the reference
}

class program : public apps::application {
 public:
  program(const apps::run_context& context, apps::transport_kind kind, const box_geometry& all)
      : m_context(context),
        m_material(context.options.potential),
        m_all(all),
        m_ranks(kind, context.comm, context.queue, context.options.transport),
        m_block(all.cells, all.cut, m_ranks.rank()) {
    for (std::size_t d = 0; d < 3; ++d) {
      m_box.length[d] = static_cast<double>(context.options.size.at(d)) * m_material.lattice;
      m_box.inverse_edge[d] = static_cast<double>(all.cells.at(d)) / m_box.length[d];
      m_box.cells[d] = static_cast<int>(all.cells.at(d));
      m_box.first[d] = m_block.first().at(d);
    }
    const auto [nx, ny, nz] = m_block.own();
    m_box.line = static_cast<unsigned>(nx) + 2;
    m_box.plane = m_box.line * (static_cast<unsigned>(ny) + 2);
    m_box.slots = all.slots;
    for (int z = 0; z < nz; ++z)
      for (int y = 0; y < ny; ++y)
        for (int x = 0; x < nx; ++x) m_own_cells.push_back(m_block.index(x, y, z));
    const apps::ghost_plan plan(m_block, 26);
    m_out = plan.out_by_peer;
    m_in = plan.in_by_peer;
    m_own = list(m_own_cells);
    m_sent = list(plan.sent);
    m_received = list(plan.received);
    for (array<double>& atoms : m_atoms)
      atoms = m_ranks.make_array<double>(m_block.all_cells() * m_box.stride());
    m_forces = m_ranks.make_array<double>(m_block.all_cells() * results * m_box.slots);
    m_send = m_ranks.make_messages<double>(plan.sent.size() * m_box.stride());
    m_recv = m_ranks.make_messages<double>(plan.received.size() * m_box.stride());
    m_partial = m_ranks.make_array<double>(partial_sums * quantities);
    m_sums = m_ranks.make_messages<double>(quantities);
  }

  void prepare(std::uint32_t seed) override {
    const crystal start(m_material, m_context.options.size, seed);
    m_count = start.positions.size();
    std::vector<double> records(m_atoms[0].size(), 0);
    m_atoms[1].write(m_context.queue, records);
    for (std::uint64_t n = 0; n < m_count; ++n) {
      const auto [at_x, at_y, at_z] = start.positions[n];
      const int cx = m_box.bin(0, at_x) - m_box.first[0], cy = m_box.bin(1, at_y) - m_box.first[1],
                cz = m_box.bin(2, at_z) - m_box.first[2];
      const auto [nx, ny, nz] = m_block.own();
      if (cx < 0 || cx >= nx || cy < 0 || cy >= ny || cz < 0 || cz >= nz) continue;
      double* const record = &records[m_block.index(cx, cy, cz) * m_box.stride()];
      if (box::count(record) >= m_box.slots) continue;  // verify() detects the missing atom
      double* const atom = record + head + box::count(record);
      ++record[0];
      atom[0] = static_cast<double>(n);
      for (unsigned d = 0; d < 3; ++d) {
        atom[(comd::x + d) * m_box.slots] = start.positions[n].at(d);
        atom[(px + d) * m_box.slots] = start.momenta[n].at(d);
      }
    }
    m_current = 0;
    m_steps = 0;
    m_atoms[0].write(m_context.queue, records);
    exchange(m_atoms[0], m_box.stride(), 0, head + 4 * m_box.slots);
    compute_forces();
    m_first = energies();
  }

  void step() override {
    accelerate();
    array<double>&old = m_atoms.at(m_current), &binned = m_atoms.at(1 - m_current);
    run(cells(), drift{m_box, time_step / m_material.mass}, m_own, old);
    exchange(old, m_box.stride(), 0, m_box.stride());
    run(cells(), rebin{m_box}, m_own, old, binned);
    m_current = 1 - m_current;
    exchange(binned, m_box.stride(), 0, head + 4 * m_box.slots);
    compute_forces();
    accelerate();
    if (++m_steps % steps_between_energies == 0) sum_energies();
  }

  void finish() override {
    m_sum_event.wait();
    sycl::queue(m_context.queue).wait();
  }

  // Checks that no atom is lost, that the crystal starts with the energy of its lattice, that energy is
  // conserved, and that a single rank computes the same bits.
  apps::check_result verify(std::uint32_t seed, int steps) override {
    const std::array<double, quantities> current_energies = energies();
    const double initial_energy = m_first[1] + m_first[2], atoms = static_cast<double>(m_count);
    const double lattice = m_material.lattice_energy() * atoms;
    apps::check_result all = apps::sum_over_ranks(m_context.comm, {0, digest()});
    all.wrong += current_energies[0] != atoms;
    all.wrong += !(std::abs(m_first[2] - lattice) <= 1e-10 * std::abs(lattice));
    all.wrong += !(std::abs(current_energies[1] + current_energies[2] - initial_energy) <=
                   drift_bound * std::abs(initial_energy));
    if (m_ranks.size() == 1 || steps > steps_with_reference) return all;
    program reference({m_context.options, MPI_COMM_SELF, m_context.queue, m_context.kernels},
                      apps::transport_kind::mpi, {m_all.cells, {1, 1, 1}, m_all.slots});
    reference.prepare(seed);
    for (int step = 0; step < steps; ++step) reference.step();
    const std::array<double, quantities> expected = reference.energies();
    all.wrong += reference.digest() != all.digest;
    for (unsigned n = 1; n < quantities; ++n)
      all.wrong += !(std::abs(current_energies.at(n) - expected.at(n)) <= 1e-12 * std::abs(initial_energy));
    return all;
  }

  void begin_profile() override { m_ranks.profile(m_context.queue); }
  double end_profile() override { return m_ranks.end_profile(); }
  std::string backend() const override { return m_ranks.backend(message_bytes()); }
  std::uint64_t message_bytes() const override { return m_send.size() * sizeof(double); }

 private:
  array<unsigned> list(const std::vector<unsigned>& values) {
    auto result = m_ranks.make_array<unsigned>(values.size());
    result.write(m_context.queue, values);
    return result;
  }
  template <typename Body, typename... Arrays>
  sycl::event run(const grid& grid, const Body& body, const Arrays&... arrays) {
    return m_context.kernels.run(m_context.queue, grid, body, {}, arrays...);
  }
  grid cells() const { return {m_own.size(), 1, 8, 1}; }
  grid slots() const { return {m_own.size(), m_box.slots, 1, m_box.slots}; }

  // Copies a part of the records of this rank's boundary cells to the ghost cells of the neighbors.
  void exchange(const array<double>& records, unsigned long stride, unsigned long first, unsigned long width) {
    const grid sent{m_sent.size(), width, 4, 64}, received{m_received.size(), width, 4, 64};
    const sycl::event packed = run(sent, pack{stride, first, width}, m_sent, records, m_send);
    const sycl::event arrival =
        m_ranks.exchange(m_send.block(), apps::scale(m_out, width * sizeof(double)), m_recv.block(),
                         apps::scale(m_in, width * sizeof(double)), {packed});
    m_context.kernels.run(m_context.queue, received, unpack{stride, first, width}, {arrival}, m_received,
                          m_recv, records);
  }

  void accelerate() { run(cells(), kick{m_box, time_step / 2}, m_own, m_forces, m_atoms.at(m_current)); }

  void compute_forces() {
    const array<double>& atoms = m_atoms.at(m_current);
    if (!m_material.is_embedded) {
      run(slots(),
          lennard_jones{m_box, m_material.cutoff * m_material.cutoff, m_material.sigma * m_material.sigma,
                        m_material.epsilon, m_material.lennard_jones_shift()},
          m_own, atoms, m_forces);
      return;
    }
    const embedded_atom potential{m_box,        m_material.cutoff,     m_material.lattice,   m_material.epsilon,
                                  m_material.c, m_material.tail_of(9), m_material.tail_of(6)};
    run(slots(), density{potential}, m_own, atoms, m_forces);
    exchange(m_forces, results * m_box.slots, slope * m_box.slots, m_box.slots);
    run(slots(), embedding{potential}, m_own, atoms, m_forces);
  }

  void sum_energies() {
    run({1, partial_sums, 1, partial_sums},
        sum_cells{m_box, m_material.mass, static_cast<unsigned>(m_own.size())}, m_own, m_atoms.at(m_current),
        m_forces, m_partial);
    const sycl::event sum_event = m_context.kernels.run(m_context.queue, {1, quantities, 1, quantities},
                                                        sum_columns{}, {m_sum_event}, m_partial, m_sums);
    m_sum_event = m_ranks.allreduce(m_sums, {sum_event});
  }

  // The number of atoms, and the kinetic and potential energy of all ranks.
  std::array<double, quantities> energies() {
    sum_energies();
    finish();
    const std::vector<double> sums = m_sums.read(m_context.queue);
    return {sums[0], sums[1], sums[2]};
  }

  std::uint64_t digest() {
    const std::vector<double> records = m_atoms.at(m_current).read(m_context.queue);
    std::uint64_t sum = 0;
    for (const unsigned cell : m_own_cells) {
      const double* const record = &records[cell * m_box.stride()];
      for (unsigned long i = 0; i < box::count(record); ++i)
        for (unsigned long f = 1; f < fields; ++f)
          sum += apps::mix(static_cast<std::uint64_t>(record[head + i]) * fields + f,
                           std::bit_cast<std::uint64_t>(record[head + f * m_box.slots + i]));
    }
    return sum;
  }

  const apps::run_context m_context;
  material m_material;
  box_geometry m_all;
  apps::transport m_ranks;
  apps::block m_block;
  box m_box{};
  std::vector<unsigned> m_own_cells;
  std::vector<apps::message> m_out, m_in;  // in cells
  array<unsigned> m_own, m_sent, m_received;
  std::array<array<double>, 2> m_atoms;
  std::size_t m_current = 0;  // which of them
  array<double> m_forces, m_send, m_recv, m_partial, m_sums;
  sycl::event m_sum_event;
  std::uint64_t m_count = 0;
  int m_steps = 0;
  std::array<double, quantities> m_first{};  // energies
};

}  // namespace

}  // namespace comd

apps::application_entry apps::comd_entry() {
  using namespace comd;
  return {"comd",
          "float64",
          device_text,
          {source_of<kick>(), source_of<drift>(), source_of<rebin>(), source_of<comd::pack>(),
           source_of<comd::unpack>(), source_of<lennard_jones>(), source_of<density>(), source_of<embedding>(),
           source_of<sum_cells>(), source_of<sum_columns>()},
          footprint,
          [](const program_options& options) {
            return std::vector<std::pair<std::string, std::string>>{{"potential", options.potential}};
          },
          [](const run_context& context, transport_kind kind) -> std::unique_ptr<application> {
            int ranks = 1;
            MPI_Comm_size(context.comm, &ranks);
            return std::make_unique<program>(
                context, kind, geometry_of(context.options, material(context.options.potential), ranks));
          }};
}
