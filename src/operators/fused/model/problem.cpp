#include "operators/fused/model/problem.hpp"

#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "base/arguments.hpp"
#include "base/tables.hpp"
#include "bootstrap/exchange.hpp"

namespace isthmus::fused {
namespace {

constexpr std::uint64_t most_elements = std::numeric_limits<std::int64_t>::max() / 8;
constexpr std::uint64_t most_extent = std::numeric_limits<std::int32_t>::max();  // of BLAS interfaces
constexpr std::uint32_t most_chunks = 4096;

error invalid(const char* location, const std::string& message, const std::string& hint) {
  return invalid_argument(location, "fused_plan_create: " + message, hint);
}

void check_range(const char* location, const char* name, long long value, long long end) {
  if (value < 0 || value >= end)
    throw invalid(location,
                  fmt::format("description->{} = {} is out of range: must be in [0, {})", name, value, end),
                  "use a value of fused.h or types.h");
}

void check_enumerations(const isthmus_fused_description& asked) {
  check_range(ISTHMUS_HERE, "kind", asked.kind, ISTHMUS_FUSED_GEMM_REDUCE_SCATTER + 1);
  check_range(ISTHMUS_HERE, "mode", asked.mode, ISTHMUS_FUSED_PIPELINED + 1);
  check_range(ISTHMUS_HERE, "input", asked.input, ISTHMUS_DATATYPE_COUNT);
  check_range(ISTHMUS_HERE, "output", asked.output, ISTHMUS_DATATYPE_COUNT);
  check_range(ISTHMUS_HERE, "b_layout", asked.b_layout, ISTHMUS_COLUMN_MAJOR + 1);
  check_range(ISTHMUS_HERE, "flags", asked.flags, (ISTHMUS_FUSED_SHARDED_B | ISTHMUS_FUSED_TRACE) + 1);
  if (asked.kind != ISTHMUS_FUSED_ALLGATHER_GEMM && (asked.flags & ISTHMUS_FUSED_SHARDED_B) != 0)
    throw invalid(ISTHMUS_HERE, "ISTHMUS_FUSED_SHARDED_B is set for GEMM_REDUCE_SCATTER",
                  "there every rank has its own rows of B anyway");
}

void check_types(const isthmus_fused_description& asked) {
  const bool known =
      asked.input == ISTHMUS_FLOAT16 || asked.input == ISTHMUS_BFLOAT16 || asked.input == ISTHMUS_FLOAT32;
  if (!known)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("fused_plan_create: description->input = {} is not supported",
                                 isthmus_datatype_name(asked.input)),
                     "float16, bfloat16 and float32 are");
  if (asked.output != ISTHMUS_FLOAT32 && asked.output != asked.input)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("fused_plan_create: description->output = {} is not supported for input {}",
                                 isthmus_datatype_name(asked.output), isthmus_datatype_name(asked.input)),
                     "C is float32 or has the input's type");
}

void check_sizes(const isthmus_fused_description& asked) {
  for (const auto& [name, value] : {std::pair("m", asked.m), std::pair("n", asked.n), std::pair("k", asked.k)})
    if (value > most_extent)
      throw invalid(ISTHMUS_HERE,
                    fmt::format("description->{} = {} must be at most {}", name, value, most_extent),
                    "BLAS interfaces count in 32 bits");
}

void complete_leading(const char* name, std::uint64_t& leading, std::uint64_t width) {
  if (leading == 0) leading = width;
  if (leading < width || leading > most_extent)
    throw invalid(
        ISTHMUS_HERE,
        fmt::format("description->{} = {} must be 0 or in [{}, {}]", name, leading, width, most_extent),
        "it counts the elements between two rows (two columns of a column-major B)");
}

void check_extents(const problem& what) {
  const auto& asked = what.asked;
  if (asked.m % static_cast<std::uint64_t>(what.size) != 0)
    throw invalid(ISTHMUS_HERE,
                  fmt::format("description->m = {} is not a multiple of the {} ranks", asked.m, what.size),
                  "every rank holds m/size rows; pad the last rows");
  if (asked.chunks > most_chunks || asked.chunks > std::max<std::uint64_t>(what.shard_rows, 1))
    throw invalid(ISTHMUS_HERE,
                  fmt::format("description->chunks = {} must be at most {} and at most the {} rows of a shard",
                              asked.chunks, most_chunks, what.shard_rows),
                  "0 lets the cost model choose");
  for (const std::uint64_t elements : {what.a_extent(), what.b_extent(), what.c_extent()})
    if (elements > most_elements)
      throw invalid(ISTHMUS_HERE,
                    fmt::format("a matrix of {} elements does not fit the address space", elements),
                    "check for a negative value that became unsigned");
}

problem check_description(const communicator& owner, const isthmus_fused_description* given) {
  if (given == nullptr)
    throw invalid(ISTHMUS_HERE, "description is NULL", "pass the address of an isthmus_fused_description");
  if (given->struct_bytes < sizeof *given)
    throw invalid(
        ISTHMUS_HERE,
        fmt::format("description->struct_bytes = {} must be at least {}", given->struct_bytes, sizeof *given),
        "zero-initialise the description and set struct_bytes = sizeof(isthmus_fused_description)");
  problem what;
  what.asked = *given;
  what.rank = owner.ranks().rank;
  what.size = owner.ranks().size;
  check_enumerations(what.asked);
  check_types(what.asked);
  check_sizes(what.asked);
  what.shard_rows = what.asked.m / static_cast<std::uint64_t>(what.size);
  complete_leading("lda", what.asked.lda, what.asked.k);
  complete_leading("ldb", what.asked.ldb,
                   what.asked.b_layout == ISTHMUS_ROW_MAJOR ? what.asked.n : what.asked.k);
  complete_leading("ldc", what.asked.ldc, what.asked.n);
  check_extents(what);
  return what;
}

// What ranks compare. `lda` is not in it where it is local to a rank.
struct field {
  const char* name;
  std::uint64_t value;
};
constexpr std::size_t field_count = 10;
using declaration = std::array<std::uint64_t, field_count>;

std::array<field, field_count> fields_of(const isthmus_fused_description& asked) {
  const bool gathers = asked.kind == ISTHMUS_FUSED_ALLGATHER_GEMM;
  const bool sharded = (asked.flags & ISTHMUS_FUSED_SHARDED_B) != 0;
  return {{{"kind", static_cast<std::uint64_t>(asked.kind)},
           {"mode", static_cast<std::uint64_t>(asked.mode)},
           {"m", asked.m},
           {"n", gathers && sharded ? 0 : asked.n},
           {"k", gathers ? asked.k : 0},
           {"input", static_cast<std::uint64_t>(asked.input)},
           {"output", static_cast<std::uint64_t>(asked.output)},
           {"flags", asked.flags & ~static_cast<std::uint32_t>(ISTHMUS_FUSED_TRACE)},
           {"lda", gathers ? asked.lda : 0},
           {"chunks", asked.chunks}}};
}

std::string text_of(const field& each) {
  if (std::string_view(each.name) == "input" || std::string_view(each.name) == "output")
    return isthmus_datatype_name(static_cast<isthmus_datatype>(each.value));
  return std::to_string(each.value);
}

void check_declarations(const std::vector<declaration>& all, const isthmus_fused_description& own) {
  const auto names = fields_of(own);
  for (std::size_t index = 0; index < field_count; ++index)
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank][index] != all[0][index])
        throw make_error(
            ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
            fmt::format(
                "fused_plan_create: ranks disagree about description->{}: rank 0 has {}, rank {} has {}",
                names[index].name, text_of({names[index].name, all[0][index]}), rank,
                text_of({names[index].name, all[rank][index]})),
            "every rank describes the same product; n may differ with ISTHMUS_FUSED_SHARDED_B, k for "
            "GEMM_REDUCE_SCATTER");
}

std::uint64_t extent_of(std::uint64_t lines, std::uint64_t width, std::uint64_t leading) {
  return lines == 0 || width == 0 ? 0 : (lines - 1) * leading + width;
}

struct range {
  const char* name;
  const void* begin;
  std::uint64_t bytes;
  bool overlaps(const range& other) const {
    const auto mine = reinterpret_cast<std::uintptr_t>(begin),
               theirs = reinterpret_cast<std::uintptr_t>(other.begin);
    return bytes > 0 && other.bytes > 0 && mine < theirs + other.bytes && theirs < mine + bytes;
  }
};

error bad_argument(const char* location, const std::string& message, const std::string& hint) {
  return invalid_argument(location, "fused_run: " + message, hint);
}

void check_buffer(const range& buffer, std::uint64_t element, bool optional) {
  if (buffer.begin == nullptr && !optional && buffer.bytes > 0)
    throw bad_argument(ISTHMUS_HERE, fmt::format("{} is NULL", buffer.name),
                       fmt::format("it has {} bytes in this plan", buffer.bytes));
  if (reinterpret_cast<std::uintptr_t>(buffer.begin) % element != 0)
    throw bad_argument(
        ISTHMUS_HERE,
        fmt::format("{} = {} is not aligned to its elements of {} bytes", buffer.name, buffer.begin, element),
        "matrices start at an element");
}

void check_overlap(const range& written, const range& other) {
  if (written.begin != nullptr && other.begin != nullptr && written.overlaps(other))
    throw bad_argument(
        ISTHMUS_HERE,
        fmt::format("{} = {} overlaps {} = {}", written.name, written.begin, other.name, other.begin),
        "only A may lie in gathered_a, in this rank's own rows");
}

void check_scalars(const problem& what, const isthmus_fused_arguments& given) {
  if (given.view < ISTHMUS_FUSED_WHOLE || given.view > ISTHMUS_FUSED_COMMUNICATION_ONLY)
    throw bad_argument(
        ISTHMUS_HERE, fmt::format("view = {} is out of range: must be in [0, 3)", static_cast<int>(given.view)),
        "use an ISTHMUS_FUSED_ view");
  if (what.gathers()) return;
  if (given.beta != 0)
    throw bad_argument(ISTHMUS_HERE, fmt::format("beta = {} must be 0 for GEMM_REDUCE_SCATTER", given.beta),
                       "C only gets the sum");
  if (given.gathered_a != nullptr)
    throw bad_argument(ISTHMUS_HERE, "gathered_a must be NULL for GEMM_REDUCE_SCATTER",
                       "nothing is gathered there");
}

}  // namespace

std::uint64_t problem::a_extent() const { return extent_of(a_rows(), asked.k, asked.lda); }
std::uint64_t problem::b_extent() const {
  return asked.b_layout == ISTHMUS_ROW_MAJOR ? extent_of(asked.k, asked.n, asked.ldb)
                                             : extent_of(asked.n, asked.k, asked.ldb);
}
std::uint64_t problem::c_extent() const { return extent_of(c_rows(), asked.n, asked.ldc); }
double problem::flops(std::uint64_t rows) const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(asked.n) * static_cast<double>(asked.k);
}

problem agree(communicator& owner, const isthmus_fused_description* given) {
  owner.check_alive();
  problem what;
  declaration mine{};
  const auto refused = failure_of([&] {
    what = check_description(owner, given);
    const auto fields = fields_of(what.asked);
    for (std::size_t index = 0; index < field_count; ++index) mine[index] = fields[index].value;
  });
  const auto all = agree(owner.control(), mine, refused, "fused_plan_create: the description is refused");
  check_declarations(all, what.asked);
  return what;
}

void check_arguments(const problem& what, isthmus_platform platform, const isthmus_fused_arguments* given) {
  if (given == nullptr)
    throw bad_argument(ISTHMUS_HERE, "arguments is NULL", "pass the address of an isthmus_fused_arguments");
  if (given->struct_bytes < sizeof *given)
    throw bad_argument(ISTHMUS_HERE,
                       fmt::format("struct_bytes = {} must be at least {}", given->struct_bytes, sizeof *given),
                       "zero-initialise the arguments and set struct_bytes = sizeof(isthmus_fused_arguments)");
  if (platform == ISTHMUS_PLATFORM_HOST && given->stream != nullptr)
    throw bad_argument(ISTHMUS_HERE,
                       fmt::format("stream = {} must be NULL on the host platform", given->stream),
                       "host runs are complete when they return");
  check_scalars(what, *given);
  const std::uint64_t in = what.input_bytes(), out = what.output_bytes();
  const range a{"a", given->a, what.a_extent() * in}, b{"b", given->b, what.b_extent() * in},
      c{"c", given->c, what.c_extent() * out}, bias{"bias", given->bias, what.asked.n * out},
      gathered{"gathered_a", given->gathered_a, what.gathers() ? what.asked.m * what.asked.k * in : 0};
  check_buffer(a, in, false);
  check_buffer(b, in, false);
  check_buffer(c, out, false);
  check_buffer(bias, out, true);
  check_buffer(gathered, in, true);
  for (const range& other : {a, b, bias, gathered}) check_overlap(c, other);
  for (const range& other : {b, bias}) check_overlap(gathered, other);
  const auto* own = static_cast<const std::byte*>(given->gathered_a) +
                    static_cast<std::uint64_t>(what.rank) * what.shard_bytes();
  const bool in_place = gathered.begin != nullptr && given->a == own && what.asked.lda == what.asked.k;
  if (!in_place) check_overlap(gathered, a);
}

}  // namespace isthmus::fused
