// Transpose: an array[z][y][x] that is divided along z (slabs), or along z and y (pencils), becomes [x][y][z]
// or [y][x][z], divided along dimensions that were complete before, and is transposed back. Elements are
// numbers that encode their position.
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

// The arrangement of ranks as rows x columns. Pencils: x and y are divided among `rows`, y and
// z among `columns`.
struct layout {
  unsigned rows, columns;
};

layout layout_of(const apps::program_options& options, int ranks) {
  if (options.decomposition == 1) return {1, static_cast<unsigned>(ranks)};
  unsigned rows = 1;
  for (unsigned r = 1; r * r <= static_cast<unsigned>(ranks); ++r)
    if (static_cast<unsigned>(ranks) % r == 0) rows = r;
  return {static_cast<unsigned>(ranks) / rows, rows};
}

void require_divides(const char* dimension, std::uint64_t extent, unsigned parts) {
  if (extent % parts == 0) return;
  throw apps::bad_argument(std::string("--size: ") + dimension + " = " + std::to_string(extent) +
                           " must be a multiple of the " + std::to_string(parts) +
                           " ranks that share it; change the size or the number of ranks");
}

std::uint64_t footprint(const apps::program_options& options, int ranks) {
  const layout cut = layout_of(options, ranks);
  const auto [x, y, z] = options.size;
  if (options.decomposition == 1) {
    require_divides("X", x, cut.columns);
  } else {
    require_divides("X", x, cut.rows);
    require_divides("Y", y, cut.rows);
    require_divides("Y", y, cut.columns);
  }
  require_divides("Z", z, cut.columns);
  if (x * y * z > UINT32_MAX)
    throw apps::bad_argument("--size: " + std::to_string(x * y * z) +
                             " elements, must be less than 2^32; use a smaller size");
  return 5 * x * y * z * sizeof(element);
}

// A redistribution among some of the ranks.
class redistribution {
 public:
  redistribution(const apps::run_context& context, transport ranks, const block_extent& extent)
      : m_context(context),
        m_ranks(std::move(ranks)),
        m_extent(extent),
        m_count(std::uint64_t{extent.outer} * extent.a * extent.b * extent.c * extent.parts) {
    m_send = m_ranks.make_messages<element>(m_count);
    m_recv = m_ranks.make_messages<element>(m_count);
  }

  sycl::event forward(const array<element>& source, const array<element>& destination) {
    return run(m_extent, source, destination);
  }
  sycl::event backward(const array<element>& source, const array<element>& destination) {
    return run({m_extent.outer, m_extent.c, m_extent.b, m_extent.a, m_extent.parts}, source, destination);
  }
  void poison_messages() {
    m_send.write(m_context.queue, std::vector<element>(m_count, poison));
    m_recv.write(m_context.queue, std::vector<element>(m_count, poison));
  }
  transport& ranks() { return m_ranks; }
  const transport& ranks() const { return m_ranks; }

 private:
  sycl::event run(const block_extent& extent, const array<element>& source, const array<element>& destination) {
    const unsigned long lines = std::uint64_t{extent.outer} * extent.b * extent.parts;
    const grid packed{lines * extent.a, extent.c, 16, 64}, unpacked{lines * extent.c, extent.a, 16, 64};
    const sycl::event pack_event =
        m_context.kernels.run(m_context.queue, packed, pack{extent}, {}, source, m_send);
    const sycl::event arrival = m_ranks.alltoall(m_send.block(), m_recv.block(),
                                                 m_count / extent.parts * sizeof(element), {pack_event});
    return m_context.kernels.run(m_context.queue, unpacked, unpack{extent}, {arrival}, m_recv, destination);
  }

  const apps::run_context m_context;
  transport m_ranks;
  block_extent m_extent;
  std::uint64_t m_count;
  array<element> m_send, m_recv;
};

class program : public apps::application {
 public:
  program(const apps::run_context& context, apps::transport_kind kind)
      : m_context(context), m_all_ranks(kind, context.comm, context.queue, context.options.transport) {
    const auto [x, y, z] = context.options.size;
    m_x = static_cast<unsigned>(x), m_y = static_cast<unsigned>(y), m_z = static_cast<unsigned>(z);
    const layout cut = layout_of(context.options, m_all_ranks.size());
    m_count = x * y * z / static_cast<unsigned>(m_all_ranks.size());
    const auto rank = static_cast<unsigned>(m_all_ranks.rank());
    if (context.options.decomposition == 1) {
      m_redistributions.emplace_back(context, m_all_ranks.split(0, m_all_ranks.rank()),
                                     block_extent{1, m_z / cut.columns, m_y, m_x / cut.columns, cut.columns});
      m_original_box = {0, 0, rank * (m_z / cut.columns), m_x, m_y, m_z / cut.columns};
      m_transposed_box = {rank * (m_x / cut.columns), 0, 0, m_x / cut.columns, m_y, m_z};
    } else {
      const unsigned row = rank / cut.columns, column = rank % cut.columns;
      const unsigned xs = m_x / cut.rows, ys = m_y / cut.rows, yc = m_y / cut.columns, zs = m_z / cut.columns;
      m_redistributions.emplace_back(context, m_all_ranks.split(static_cast<int>(column), m_all_ranks.rank()),
                                     block_extent{zs, ys, 1, xs, cut.rows});
      m_redistributions.emplace_back(context, m_all_ranks.split(static_cast<int>(row), m_all_ranks.rank()),
                                     block_extent{1, zs, xs, yc, cut.columns});
      m_original_box = {0, row * ys, column * zs, m_x, ys, zs};
      m_transposed_box = {row * xs, column * yc, 0, xs, yc, m_z};
    }
    for (std::size_t i = 0; i <= m_redistributions.size(); ++i)
      m_arrays.push_back(m_all_ranks.make_array<element>(m_count));
  }

  void prepare(std::uint32_t seed) override {
    std::vector<element> values(m_count, poison);
    for (std::size_t i = 1; i < m_arrays.size(); ++i) m_arrays[i].write(m_context.queue, values);
    for (redistribution& step : m_redistributions) step.poison_messages();
    std::uint64_t index = 0;
    for (unsigned z = 0; z < m_original_box.nz; ++z)
      for (unsigned y = 0; y < m_original_box.ny; ++y)
        for (unsigned x = 0; x < m_original_box.nx; ++x)
          values[index++] =
              code(position(m_original_box.x + x, m_original_box.y + y, m_original_box.z + z), seed);
    m_arrays[0].write(m_context.queue, values);
  }

  void step() override {
    forward();
    for (std::size_t i = m_redistributions.size(); i-- > 0;)
      m_redistributions[i].backward(m_arrays[i + 1], m_arrays[i]);
  }

  void finish() override { sycl::queue(m_context.queue).wait(); }

  // Checks that the array is back in its original order and, after one more forward transpose, in
  // the other order.
  apps::check_result verify(std::uint32_t seed, int) override {
    const std::vector<element> original = m_arrays[0].read(m_context.queue);
    apps::check_result local_result;
    std::uint64_t index = 0;
    for (unsigned z = 0; z < m_original_box.nz; ++z)
      for (unsigned y = 0; y < m_original_box.ny; ++y)
        for (unsigned x = 0; x < m_original_box.nx; ++x)
          check_element(local_result, original[index++],
                        position(m_original_box.x + x, m_original_box.y + y, m_original_box.z + z), seed);
    for (std::size_t i = 1; i < m_arrays.size(); ++i)
      m_arrays[i].write(m_context.queue, std::vector<element>(m_count, poison));
    forward();
    const std::vector<element> transposed = m_arrays.back().read(m_context.queue);
    const bool slabs = m_redistributions.size() == 1;
    const unsigned first = slabs ? m_transposed_box.nx : m_transposed_box.ny,
                   second = slabs ? m_transposed_box.ny : m_transposed_box.nx;
    index = 0;
    for (unsigned i = 0; i < first; ++i)
      for (unsigned j = 0; j < second; ++j)
        for (unsigned z = 0; z < m_transposed_box.nz; ++z) {
          const unsigned x = m_transposed_box.x + (slabs ? i : j), y = m_transposed_box.y + (slabs ? j : i);
          check_element(local_result, transposed[index++], position(x, y, z), seed);
        }
    return apps::sum_over_ranks(m_context.comm, local_result);
  }

  void begin_profile() override {
    for (redistribution& step : m_redistributions) step.ranks().profile(m_context.queue);
  }
  double end_profile() override {
    double seconds = 0;
    for (redistribution& step : m_redistributions) seconds += step.ranks().end_profile();
    return seconds;
  }
  std::string backend() const override { return m_redistributions.front().ranks().backend(message_bytes()); }
  std::uint64_t message_bytes() const override { return m_count * sizeof(element); }

 private:
  // A box of the whole array: its start and extent.
  struct box {
    unsigned x, y, z, nx, ny, nz;
  };

  void forward() {
    for (std::size_t i = 0; i < m_redistributions.size(); ++i)
      m_redistributions[i].forward(m_arrays[i], m_arrays[i + 1]);
  }
  std::uint64_t position(std::uint64_t x, std::uint64_t y, std::uint64_t z) const {
    return (z * m_y + y) * m_x + x;
  }
  static void check_element(apps::check_result& local_result, element value, std::uint64_t position,
                            std::uint32_t seed) {
    local_result.wrong += value != code(position, seed);
    local_result.digest += apps::mix(position, value);
  }

  const apps::run_context m_context;
  transport m_all_ranks;
  unsigned m_x = 0, m_y = 0, m_z = 0;
  std::uint64_t m_count = 0;
  box m_original_box{}, m_transposed_box{};
  std::vector<redistribution> m_redistributions;  // forward; in reverse order for backward
  std::vector<array<element>> m_arrays;           // before, between and after the redistributions
};

}  // namespace

}  // namespace transpose

apps::application_entry apps::transpose_entry() {
  return {"transpose",
          "uint64",
          transpose::device_text,
          {source_of<transpose::pack>(), source_of<transpose::unpack>()},
          transpose::footprint,
          [](const program_options& options) {
            return std::vector<std::pair<std::string, std::string>>{
                {"decomposition", std::to_string(options.decomposition) + "-D"}};
          },
          [](const run_context& context, transport_kind kind) -> std::unique_ptr<application> {
            return std::make_unique<transpose::program>(context, kind);
          }};
}
