// Transpose: an array[z][y][x] that is cut along z (slabs), or along z and y (pencils), becomes [x][y][z] or
// [y][x][z], cut along what was whole before, and goes back. Elements are numbers that say where they belong.
#include "common/application.hpp"
#include "transpose/device_code.hpp"
#include "transpose/device_text.hpp"  // generated

namespace transpose {

namespace {

using apps::array;
using apps::grid;
using apps::transport;
using element = unsigned long;  // as wide as a double

constexpr element poison = 0xdeadbeefdeadbeef;

element code(std::uint64_t position, std::uint32_t seed) {
  return position * 0x9e3779b97f4a7c15 + seed;  // one to one
}

// Ranks as rows x columns: y is cut among a column's... pencils: x and y among `rows`, y and z among `columns`.
struct layout {
  unsigned rows, columns;
};

layout layout_of(const apps::options& asked, int ranks) {
  if (asked.decomposition == 1) return {1, static_cast<unsigned>(ranks)};
  unsigned rows = 1;
  for (unsigned r = 1; r * r <= static_cast<unsigned>(ranks); ++r)
    if (static_cast<unsigned>(ranks) % r == 0) rows = r;
  return {static_cast<unsigned>(ranks) / rows, rows};
}

void require_divides(const char* what, std::uint64_t extent, unsigned parts) {
  if (extent % parts == 0) return;
  throw apps::bad_argument(std::string("--size: ") + what + " = " + std::to_string(extent) +
                           "; the rule is a multiple of the " + std::to_string(parts) +
                           " ranks among which it is cut; change the size or the number of ranks");
}

std::uint64_t footprint(const apps::options& asked, int ranks) {
  const layout cut = layout_of(asked, ranks);
  const auto [x, y, z] = asked.size;
  if (asked.decomposition == 1) {
    require_divides("X", x, cut.columns);
  } else {
    require_divides("X", x, cut.rows);
    require_divides("Y", y, cut.rows);
    require_divides("Y", y, cut.columns);
  }
  require_divides("Z", z, cut.columns);
  if (x * y * z > UINT32_MAX)
    throw apps::bad_argument("--size: " + std::to_string(x * y * z) + " elements; the rule is less than 2^32");
  return 5 * x * y * z * sizeof(element);
}

// One redistribution among some of the ranks.
class turn {
 public:
  turn(const apps::surroundings& around, transport ranks, const extent& of)
      : m_around(around),
        m_ranks(std::move(ranks)),
        m_of(of),
        m_count(std::uint64_t{of.outer} * of.a * of.b * of.c * of.parts) {
    m_send = m_ranks.make_messages<element>(m_count);
    m_recv = m_ranks.make_messages<element>(m_count);
  }

  sycl::event there(const array<element>& from, const array<element>& to) { return run(m_of, from, to); }
  sycl::event back(const array<element>& from, const array<element>& to) {
    return run({m_of.outer, m_of.c, m_of.b, m_of.a, m_of.parts}, from, to);
  }
  void poison_messages() {
    m_send.write(m_around.queue, std::vector<element>(m_count, poison));
    m_recv.write(m_around.queue, std::vector<element>(m_count, poison));
  }
  transport& ranks() { return m_ranks; }
  const transport& ranks() const { return m_ranks; }

 private:
  sycl::event run(const extent& of, const array<element>& from, const array<element>& to) {
    const unsigned long lines = std::uint64_t{of.outer} * of.b * of.parts;
    const grid packed{lines * of.a, of.c, 16, 64}, unpacked{lines * of.c, of.a, 16, 64};
    const sycl::event filled = m_around.kernels.run(m_around.queue, packed, pack{of}, {}, from, m_send);
    const sycl::event arrived =
        m_ranks.alltoall(m_send.block(), m_recv.block(), m_count / of.parts * sizeof(element), {filled});
    return m_around.kernels.run(m_around.queue, unpacked, unpack{of}, {arrived}, m_recv, to);
  }

  const apps::surroundings m_around;
  transport m_ranks;
  extent m_of;
  std::uint64_t m_count;
  array<element> m_send, m_recv;
};

class program : public apps::application {
 public:
  program(const apps::surroundings& around, apps::transport_kind kind)
      : m_around(around), m_world(kind, around.comm, around.queue, around.asked.transport) {
    const auto [x, y, z] = around.asked.size;
    m_x = static_cast<unsigned>(x), m_y = static_cast<unsigned>(y), m_z = static_cast<unsigned>(z);
    const layout cut = layout_of(around.asked, m_world.size());
    m_count = x * y * z / static_cast<unsigned>(m_world.size());
    const auto rank = static_cast<unsigned>(m_world.rank());
    if (around.asked.decomposition == 1) {
      m_turns.emplace_back(around, m_world.split(0, m_world.rank()),
                           extent{1, m_z / cut.columns, m_y, m_x / cut.columns, cut.columns});
      m_before = {0, 0, rank * (m_z / cut.columns), m_x, m_y, m_z / cut.columns};
      m_after = {rank * (m_x / cut.columns), 0, 0, m_x / cut.columns, m_y, m_z};
    } else {
      const unsigned row = rank / cut.columns, column = rank % cut.columns;
      const unsigned xs = m_x / cut.rows, ys = m_y / cut.rows, yc = m_y / cut.columns, zs = m_z / cut.columns;
      m_turns.emplace_back(around, m_world.split(static_cast<int>(column), m_world.rank()),
                           extent{zs, ys, 1, xs, cut.rows});
      m_turns.emplace_back(around, m_world.split(static_cast<int>(row), m_world.rank()),
                           extent{1, zs, xs, yc, cut.columns});
      m_before = {0, row * ys, column * zs, m_x, ys, zs};
      m_after = {row * xs, column * yc, 0, xs, yc, m_z};
    }
    for (std::size_t i = 0; i <= m_turns.size(); ++i) m_arrays.push_back(m_world.make_array<element>(m_count));
  }

  void prepare(std::uint32_t seed) override {
    std::vector<element> values(m_count, poison);
    for (std::size_t i = 1; i < m_arrays.size(); ++i) m_arrays[i].write(m_around.queue, values);
    for (turn& each : m_turns) each.poison_messages();
    std::uint64_t at = 0;
    for (unsigned z = 0; z < m_before.nz; ++z)
      for (unsigned y = 0; y < m_before.ny; ++y)
        for (unsigned x = 0; x < m_before.nx; ++x)
          values[at++] = code(position(m_before.x + x, m_before.y + y, m_before.z + z), seed);
    m_arrays[0].write(m_around.queue, values);
  }

  void step() override {
    there();
    for (std::size_t i = m_turns.size(); i-- > 0;) m_turns[i].back(m_arrays[i + 1], m_arrays[i]);
  }

  void finish() override { sycl::queue(m_around.queue).wait(); }

  // Back where it began, and, after one more way there, at its place in the other order.
  apps::verdict verify(std::uint32_t seed, int) override {
    const std::vector<element> home = m_arrays[0].read(m_around.queue);
    apps::verdict mine;
    std::uint64_t at = 0;
    for (unsigned z = 0; z < m_before.nz; ++z)
      for (unsigned y = 0; y < m_before.ny; ++y)
        for (unsigned x = 0; x < m_before.nx; ++x)
          judge(mine, home[at++], position(m_before.x + x, m_before.y + y, m_before.z + z), seed);
    for (std::size_t i = 1; i < m_arrays.size(); ++i)
      m_arrays[i].write(m_around.queue, std::vector<element>(m_count, poison));
    there();
    const std::vector<element> away = m_arrays.back().read(m_around.queue);
    const bool slabs = m_turns.size() == 1;
    const unsigned first = slabs ? m_after.nx : m_after.ny, second = slabs ? m_after.ny : m_after.nx;
    at = 0;
    for (unsigned i = 0; i < first; ++i)
      for (unsigned j = 0; j < second; ++j)
        for (unsigned z = 0; z < m_after.nz; ++z) {
          const unsigned x = m_after.x + (slabs ? i : j), y = m_after.y + (slabs ? j : i);
          judge(mine, away[at++], position(x, y, z), seed);
        }
    return apps::sum_over_ranks(m_around.comm, mine);
  }

  void begin_profile() override {
    for (turn& each : m_turns) each.ranks().profile(m_around.queue);
  }
  double end_profile() override {
    double seconds = 0;
    for (turn& each : m_turns) seconds += each.ranks().end_profile();
    return seconds;
  }
  std::string backend() const override { return m_turns.front().ranks().backend(message_bytes()); }
  std::uint64_t message_bytes() const override { return m_count * sizeof(element); }

 private:
  // A box of the whole array: where it begins, and how large it is.
  struct box {
    unsigned x, y, z, nx, ny, nz;
  };

  void there() {
    for (std::size_t i = 0; i < m_turns.size(); ++i) m_turns[i].there(m_arrays[i], m_arrays[i + 1]);
  }
  std::uint64_t position(std::uint64_t x, std::uint64_t y, std::uint64_t z) const {
    return (z * m_y + y) * m_x + x;
  }
  static void judge(apps::verdict& mine, element found, std::uint64_t position, std::uint32_t seed) {
    mine.wrong += found != code(position, seed);
    mine.digest += apps::mix(position, found);
  }

  const apps::surroundings m_around;
  transport m_world;
  unsigned m_x = 0, m_y = 0, m_z = 0;
  std::uint64_t m_count = 0;
  box m_before{}, m_after{};
  std::vector<turn> m_turns;             // there; back in reverse
  std::vector<array<element>> m_arrays;  // before, between and after the turns
};

}  // namespace

}  // namespace transpose

apps::application_entry apps::transpose_entry() {
  return {"transpose",
          "uint64",
          transpose::device_text,
          {source_of<transpose::pack>(), source_of<transpose::unpack>()},
          transpose::footprint,
          [](const options& asked) {
            return std::vector<std::pair<std::string, std::string>>{
                {"decomposition", std::to_string(asked.decomposition) + "-D"}};
          },
          [](const surroundings& around, transport_kind kind) -> std::unique_ptr<application> {
            return std::make_unique<transpose::program>(around, kind);
          }};
}
