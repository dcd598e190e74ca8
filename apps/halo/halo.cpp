// Halo: diffusion on a periodic box of cells that is divided into blocks. Pack and unpack kernels, an exchange
// with 6 or 26 neighbors, and the inner cells computed during the exchange. The initial state is a sum of
// waves, which the stencil only damps, so the exact result after any number of steps is known.
#include <cmath>
#include <complex>
#include <numbers>

#include "common/application.hpp"
#include "common/blocks.hpp"
#include "halo/device_code.hpp"
#include "halo/device_text.hpp"  // generated

namespace halo {

namespace {

using apps::array;
using apps::grid;

std::uint64_t footprint(const apps::program_options& options, int ranks) {
  const apps::triple cut = apps::arrange_ranks(options.size, ranks);
  for (std::size_t d = 0; d < 3; ++d) {
    if (options.size.at(d) / static_cast<unsigned>(cut.at(d)) >= 3) continue;
    throw apps::bad_argument("--size: " + std::to_string(options.size.at(d)) + " cells among " +
                             std::to_string(cut.at(d)) +
                             " ranks, must be at least 3 per rank; use a larger size or fewer ranks");
  }
  const apps::block local_block(options.size, cut, 0);
  if (local_block.all_cells() > UINT32_MAX)
    throw apps::bad_argument("--size: " + std::to_string(local_block.all_cells()) +
                             " cells per rank, must be less than 2^32; use more ranks");
  return 3 * local_block.all_cells() * sizeof(float) * static_cast<unsigned>(ranks);
}

// One wave of the initial state, which a step damps.
struct wave {
  double amplitude, phase;
  std::array<double, 3> cycles;
};

class program : public apps::application {
 public:
  program(const apps::run_context& context, apps::transport_kind kind)
      : m_context(context),
        m_ranks(kind, context.comm, context.queue, context.options.transport),
        m_block(context.options.size, apps::arrange_ranks(context.options.size, m_ranks.size()),
                m_ranks.rank()) {
    const auto [nx, ny, nz] = m_block.own();
    m_weights = {static_cast<unsigned long>(nx) + 2,
                 static_cast<unsigned long>(nx + 2) * static_cast<unsigned long>(ny + 2),
                 static_cast<unsigned>(context.options.neighbors)};
    const apps::ghost_plan plan(m_block, context.options.neighbors);
    const bool is_alltoallv = context.options.exchange == "alltoallv";
    m_out = apps::scale(is_alltoallv ? plan.out_by_peer : plan.out, sizeof(float));
    m_in = apps::scale(is_alltoallv ? plan.in_by_peer : plan.in, sizeof(float));
    m_sent = list(plan.sent);
    m_received = list(plan.received);
    std::vector<unsigned> cells;
    for (int z = 0; z < nz; ++z)
      for (int y = 0; y < ny; ++y)
        for (int x = 0; x < nx; ++x) {
          const bool inner = x > 0 && x < nx - 1 && y > 0 && y < ny - 1 && z > 0 && z < nz - 1;
          if (!inner) cells.push_back(m_block.index(x, y, z));
        }
    m_shell = list(cells);
    for (array<float>& state : m_state) state = m_ranks.make_array<float>(m_block.all_cells());
    m_send = m_ranks.make_messages<float>(plan.sent.size());
    m_recv = m_ranks.make_messages<float>(plan.received.size());
    const auto [x, y, z] = context.options.size;
    const auto quarter = [](std::uint64_t n) { return std::floor(static_cast<double>(n) / 4); };
    m_waves = {{0.25, 0.3, {quarter(x), 1, 0}},
               {0.25, 1.1, {1, quarter(y), 1}},
               {0.25, 2.3, {0, 1, quarter(z)}},
               {0.25, 0.7, {1, 2, 1}}};
  }

  // Ghosts and results start as NaN, so that reading a cell that was not written is detected.
  void prepare(std::uint32_t) override {
    std::vector<float> values(m_block.all_cells(), std::nanf(""));
    m_state[1].write(m_context.queue, values);
    each_cell(0, [&](std::uint64_t cell, double value) { values[cell] = static_cast<float>(value); });
    m_state[0].write(m_context.queue, values);
    m_current = 0;
  }

  void step() override {
    const array<float>&source = m_state.at(m_current), &destination = m_state.at(1 - m_current);
    const auto& kernels = m_context.kernels;
    const auto& queue = m_context.queue;
    const sycl::event packed =
        kernels.run(queue, apps::linear_grid(m_sent.size()), pack{}, {}, m_sent, source, m_send);
    if (m_context.options.overlap) compute(1, source, destination);
    const bool is_alltoallv = m_context.options.exchange == "alltoallv";
    const sycl::event arrival = is_alltoallv
                                    ? m_ranks.alltoallv(m_send.block(), m_out, m_recv.block(), m_in, {packed})
                                    : m_ranks.exchange(m_send.block(), m_out, m_recv.block(), m_in, {packed});
    kernels.run(queue, apps::linear_grid(m_received.size()), unpack{}, {arrival}, m_received, m_recv, source);
    if (m_context.options.overlap) {
      kernels.run(queue, apps::linear_grid(m_shell.size()), shell{m_weights}, {}, m_shell, source, destination);
    } else {
      compute(0, source, destination);
    }
    m_current = 1 - m_current;
  }

  void finish() override { sycl::queue(m_context.queue).wait(); }

  // A step rounds a cell fewer than 8 times, and the weights sum to 1, so errors add up without growing.
  apps::check_result verify(std::uint32_t, int steps) override {
    const std::vector<float> values = m_state.at(m_current).read(m_context.queue);
    const double bound = (8.0 * steps + 1) * 0x1p-24;
    apps::check_result local_result;
    each_cell(steps, [&](std::uint64_t cell, double value) {
      local_result.wrong += !(std::abs(values[cell] - value) <= bound);  // NaN also counts as wrong
      local_result.digest += apps::mix(cell * 64 + static_cast<unsigned>(m_ranks.rank()),
                                       std::bit_cast<std::uint32_t>(values[cell]));
    });
    return apps::sum_over_ranks(m_context.comm, local_result);
  }

  void begin_profile() override { m_ranks.profile(m_context.queue); }
  double end_profile() override { return m_ranks.end_profile(); }
  std::string backend() const override { return m_ranks.backend(message_bytes()); }
  std::uint64_t message_bytes() const override { return m_send.size() * sizeof(float); }

 private:
  array<unsigned> list(const std::vector<unsigned>& cells) {
    auto result = m_ranks.make_array<unsigned>(cells.size());
    result.write(m_context.queue, cells);
    return result;
  }

  // Computes all cells except the outermost `margin` ones.
  void compute(int margin, const array<float>& source, const array<float>& destination) {
    const auto [nx, ny, nz] = m_block.own();
    const auto inner = [margin](int n) { return static_cast<unsigned long>(n - 2 * margin); };
    const grid cells{inner(ny) * inner(nz), inner(nx), 8, 64};
    m_context.kernels.run(
        m_context.queue, cells,
        stencil{m_weights, static_cast<unsigned>(inner(ny)), m_block.index(margin, margin, margin)}, {}, source,
        destination);
  }

  double damping(const wave& component) const {
    double sum = 0, product = 1;
    for (std::size_t d = 0; d < 3; ++d) {
      const double c = std::cos(2 * std::numbers::pi * component.cycles.at(d) /
                                static_cast<double>(m_context.options.size.at(d)));
      sum += c;
      product *= (1 + c) / 2;
    }
    return m_context.options.neighbors == 26 ? product : 0.5 + sum / 6;
  }

  // Calls visit(cell, value) with the exact values of this rank's cells after `steps` steps.
  template <typename Visit>
  void each_cell(int steps, Visit&& visit) const {
    using complex = std::complex<double>;
    const auto [nx, ny, nz] = m_block.own();
    std::vector<std::array<std::vector<complex>, 3>> factors;  // per wave and dimension
    for (const wave& component : m_waves) {
      auto& wave_factors = factors.emplace_back();
      for (std::size_t d = 0; d < 3; ++d)
        for (int i = 0; i < m_block.own().at(d); ++i)
          wave_factors.at(d).push_back(
              std::polar(1.0, 2 * std::numbers::pi * component.cycles.at(d) * (m_block.first().at(d) + i) /
                                  static_cast<double>(m_context.options.size.at(d))));
      const complex start =
          std::polar(component.amplitude * std::pow(damping(component), steps), component.phase);
      for (complex& factor : wave_factors[2]) factor *= start;
    }
    for (int z = 0; z < nz; ++z)
      for (int y = 0; y < ny; ++y) {
        std::vector<double> line(static_cast<std::size_t>(nx));
        for (const auto& wave_factors : factors) {
          const complex outer =
              wave_factors[2][static_cast<std::size_t>(z)] * wave_factors[1][static_cast<std::size_t>(y)];
          for (std::size_t x = 0; x < line.size(); ++x)
            line[x] += outer.real() * wave_factors[0][x].real() - outer.imag() * wave_factors[0][x].imag();
        }
        for (int x = 0; x < nx; ++x) visit(m_block.index(x, y, z), line[static_cast<std::size_t>(x)]);
      }
  }

  const apps::run_context m_context;
  apps::transport m_ranks;
  apps::block m_block;
  stencil_weights m_weights{};
  std::vector<apps::message> m_out, m_in;
  array<unsigned> m_sent, m_received, m_shell;
  std::array<array<float>, 2> m_state;
  std::size_t m_current = 0;  // index of the current state
  array<float> m_send, m_recv;
  std::vector<wave> m_waves;
};

}  // namespace

}  // namespace halo

apps::application_entry apps::halo_entry() {
  return {"halo",
          "float32",
          halo::device_text,
          {source_of<halo::stencil>(), source_of<halo::shell>(), source_of<halo::pack>(),
           source_of<halo::unpack>()},
          halo::footprint,
          [](const program_options& options) {
            return std::vector<std::pair<std::string, std::string>>{
                {"neighbors", std::to_string(options.neighbors)},
                {"exchange", options.exchange},
                {"overlap", options.overlap ? "yes" : "no"}};
          },
          [](const run_context& context, transport_kind kind) -> std::unique_ptr<application> {
            return std::make_unique<halo::program>(context, kind);
          }};
}
