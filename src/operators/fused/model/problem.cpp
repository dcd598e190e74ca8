#include "operators/fused/model/problem.hpp"

#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "base/tables.hpp"
#include "bootstrap/exchange.hpp"

namespace isthmus::fused {
namespace {

constexpr std::uint64_t max_elements = std::numeric_limits<std::int64_t>::max() / 8;
constexpr std::uint64_t max_extent = std::numeric_limits<std::int32_t>::max();  // limit of BLAS interfaces
constexpr std::uint32_t max_chunks = 4096;

error description_error(const char* location, const std::string& message, const std::string& hint) {
  return invalid_argument(location, "fused_plan_create: " + message, hint);
}

void check_range(const char* location, const char* name, long long value, long long end) {
  if (value < 0 || value >= end)
    throw description_error(
        location, fmt::format("description->{} = {} is out of range: must be in [0, {})", name, value, end),
        "use a constant of fused.h or types.h");
}

void check_enumerations(const isthmus_fused_description& description) {
  check_range(ISTHMUS_HERE, "kind", description.kind, ISTHMUS_FUSED_GEMM_ALLREDUCE + 1);
  check_range(ISTHMUS_HERE, "mode", description.mode, ISTHMUS_FUSED_PIPELINED + 1);
  check_range(ISTHMUS_HERE, "input", description.input, ISTHMUS_DATATYPE_COUNT);
  check_range(ISTHMUS_HERE, "output", description.output, ISTHMUS_DATATYPE_COUNT);
  check_range(ISTHMUS_HERE, "b_layout", description.b_layout, ISTHMUS_COLUMN_MAJOR + 1);
  check_range(ISTHMUS_HERE, "flags", description.flags, (ISTHMUS_FUSED_SHARDED_B | ISTHMUS_FUSED_TRACE) + 1);
  if (description.kind != ISTHMUS_FUSED_ALLGATHER_GEMM && (description.flags & ISTHMUS_FUSED_SHARDED_B) != 0)
    throw description_error(ISTHMUS_HERE,
                            fmt::format("ISTHMUS_FUSED_SHARDED_B is set for {}", kind_name(description.kind)),
                            "clear the flag: it is only for ALLGATHER_GEMM; with the other kinds, every rank "
                            "has its own rows of B");
  if (description.kind == ISTHMUS_FUSED_GEMM_ALLREDUCE && description.chunks != 0)
    throw description_error(
        ISTHMUS_HERE, fmt::format("description->chunks = {} must be 0 for GEMM_ALLREDUCE", description.chunks),
        "pass 0: GEMM_ALLREDUCE has no chunks");
}

void check_types(const isthmus_fused_description& description) {
  const bool is_supported = description.input == ISTHMUS_FLOAT16 || description.input == ISTHMUS_BFLOAT16 ||
                            description.input == ISTHMUS_FLOAT32;
  if (!is_supported)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("fused_plan_create: description->input = {} is not supported",
                                 isthmus_datatype_name(description.input)),
                     "use float16, bfloat16 or float32");
  if (description.output != ISTHMUS_FLOAT32 && description.output != description.input)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("fused_plan_create: description->output = {} is not supported for input {}",
                    isthmus_datatype_name(description.output), isthmus_datatype_name(description.input)),
        "use float32 or the type of the input");
}

void check_sizes(const isthmus_fused_description& description) {
  for (const auto& [name, value] :
       {std::pair("m", description.m), std::pair("n", description.n), std::pair("k", description.k)})
    if (value > max_extent)
      throw description_error(ISTHMUS_HERE,
                              fmt::format("description->{} = {} must be at most {}", name, value, max_extent),
                              "split the product: BLAS interfaces use 32-bit extents");
}

void complete_leading_dimension(const char* name, std::uint64_t& leading, std::uint64_t width) {
  if (leading == 0) leading = width;
  if (leading < width || leading > max_extent)
    throw description_error(
        ISTHMUS_HERE,
        fmt::format("description->{} = {} must be 0 or in [{}, {}]", name, leading, width, max_extent),
        "pass the elements between two rows (between two columns of a column-major B)");
}

void check_extents(const fused_problem& problem) {
  const auto& description = problem.description;
  if (!problem.is_allreduce() && description.m % static_cast<std::uint64_t>(problem.size) != 0)
    throw description_error(
        ISTHMUS_HERE,
        fmt::format("description->m = {} is not a multiple of the {} ranks", description.m, problem.size),
        "pad the last rows: every rank holds m/size rows");
  if (description.chunks > max_chunks || description.chunks > std::max<std::uint64_t>(problem.shard_rows, 1))
    throw description_error(
        ISTHMUS_HERE,
        fmt::format("description->chunks = {} must be at most {} and at most the {} rows of a shard",
                    description.chunks, max_chunks, problem.shard_rows),
        "pass 0 to let the cost model choose");
  for (const std::uint64_t elements : {problem.a_extent(), problem.b_extent(), problem.c_extent()})
    if (elements > max_elements)
      throw description_error(ISTHMUS_HERE,
                              fmt::format("a matrix of {} elements does not fit the address space", elements),
                              "check for a negative value that was converted to unsigned");
}

fused_problem check_description(const communicator& owner, const isthmus_fused_description* description) {
  if (description == nullptr)
    throw description_error(ISTHMUS_HERE, "description is NULL",
                            "pass the address of an isthmus_fused_description");
  if (description->struct_bytes < sizeof *description)
    throw description_error(
        ISTHMUS_HERE,
        fmt::format("description->struct_bytes = {} must be at least {}", description->struct_bytes,
                    sizeof *description),
        "zero-initialize the description and set struct_bytes = sizeof(isthmus_fused_description)");
  fused_problem problem;
  problem.description = *description;
  problem.rank = owner.ranks().rank;
  problem.size = owner.ranks().size;
  check_enumerations(problem.description);
  check_types(problem.description);
  check_sizes(problem.description);
  problem.shard_rows = problem.is_allreduce()
                           ? problem.description.m
                           : problem.description.m / static_cast<std::uint64_t>(problem.size);
  complete_leading_dimension("lda", problem.description.lda, problem.description.k);
  complete_leading_dimension(
      "ldb", problem.description.ldb,
      problem.description.b_layout == ISTHMUS_ROW_MAJOR ? problem.description.n : problem.description.k);
  complete_leading_dimension("ldc", problem.description.ldc, problem.description.n);
  check_extents(problem);
  return problem;
}

// A field that must be equal on all ranks. Fields that may differ in a description are replaced by 0.
struct field {
  const char* name;
  std::uint64_t value;
};
constexpr std::size_t field_count = 10;
using declaration = std::array<std::uint64_t, field_count>;

std::array<field, field_count> list_fields(const isthmus_fused_description& description) {
  const bool is_gather = description.kind == ISTHMUS_FUSED_ALLGATHER_GEMM;
  const bool sharded = (description.flags & ISTHMUS_FUSED_SHARDED_B) != 0;
  return {{{"kind", static_cast<std::uint64_t>(description.kind)},
           {"mode", static_cast<std::uint64_t>(description.mode)},
           {"m", description.m},
           {"n", is_gather && sharded ? 0 : description.n},
           {"k", is_gather ? description.k : 0},
           {"input", static_cast<std::uint64_t>(description.input)},
           {"output", static_cast<std::uint64_t>(description.output)},
           {"flags", description.flags & ~static_cast<std::uint32_t>(ISTHMUS_FUSED_TRACE)},
           {"lda", is_gather ? description.lda : 0},
           {"chunks", description.chunks}}};
}

std::string format_value(const field& entry) {
  if (std::string_view(entry.name) == "input" || std::string_view(entry.name) == "output")
    return isthmus_datatype_name(static_cast<isthmus_datatype>(entry.value));
  return std::to_string(entry.value);
}

void check_declarations(const std::vector<declaration>& all, const isthmus_fused_description& own) {
  const auto names = list_fields(own);
  for (std::size_t index = 0; index < field_count; ++index)
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank][index] != all[0][index])
        throw make_error(
            ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
            fmt::format(
                "fused_plan_create: ranks disagree about description->{}: rank 0 has {}, rank {} has {}",
                names[index].name, format_value({names[index].name, all[0][index]}), rank,
                format_value({names[index].name, all[rank][index]})),
            "describe the same product on every rank; only n with ISTHMUS_FUSED_SHARDED_B and k for "
            "GEMM_REDUCE_SCATTER and GEMM_ALLREDUCE may differ");
}

std::uint64_t matrix_extent(std::uint64_t lines, std::uint64_t width, std::uint64_t leading) {
  return lines == 0 || width == 0 ? 0 : (lines - 1) * leading + width;
}

struct memory_range {
  const char* name;
  const void* begin;
  std::uint64_t bytes;
  bool overlaps(const memory_range& other) const {
    const auto own_begin = reinterpret_cast<std::uintptr_t>(begin),
               other_begin = reinterpret_cast<std::uintptr_t>(other.begin);
    return bytes > 0 && other.bytes > 0 && own_begin < other_begin + other.bytes &&
           other_begin < own_begin + bytes;
  }
};

error argument_error(const char* location, const std::string& message, const std::string& hint) {
  return invalid_argument(location, "fused_run: " + message, hint);
}

void check_buffer(const memory_range& buffer, std::uint64_t element, bool optional) {
  if (buffer.begin == nullptr && !optional && buffer.bytes > 0)
    throw argument_error(ISTHMUS_HERE, fmt::format("{} is NULL", buffer.name),
                         fmt::format("pass a buffer of {} bytes", buffer.bytes));
  if (reinterpret_cast<std::uintptr_t>(buffer.begin) % element != 0)
    throw argument_error(
        ISTHMUS_HERE,
        fmt::format("{} = {} is not aligned to its elements of {} bytes", buffer.name, buffer.begin, element),
        "align the matrix to its element size");
}

void check_overlap(const memory_range& written, const memory_range& other) {
  if (written.begin != nullptr && other.begin != nullptr && written.overlaps(other))
    throw argument_error(
        ISTHMUS_HERE,
        fmt::format("{} = {} overlaps {} = {}", written.name, written.begin, other.name, other.begin),
        "use separate buffers; only A may lie in gathered_a, at this rank's own rows");
}

void check_scalars(const fused_problem& problem, const isthmus_fused_arguments& arguments) {
  if (arguments.view < ISTHMUS_FUSED_WHOLE || arguments.view > ISTHMUS_FUSED_COMMUNICATION_ONLY)
    throw argument_error(
        ISTHMUS_HERE,
        fmt::format("view = {} is out of range: must be in [0, 3)", static_cast<int>(arguments.view)),
        "use a constant of isthmus_fused_view");
  if (problem.is_gather()) return;
  const char* const kind = kind_name(problem.description.kind);
  if (arguments.beta != 0)
    throw argument_error(ISTHMUS_HERE, fmt::format("beta = {} must be 0 for {}", arguments.beta, kind),
                         "pass 0: C receives only the sum");
  if (arguments.gathered_a != nullptr)
    throw argument_error(ISTHMUS_HERE, fmt::format("gathered_a must be NULL for {}", kind),
                         fmt::format("pass NULL: {} gathers nothing", kind));
}

}  // namespace

const char* kind_name(isthmus_fused_kind kind) {
  switch (kind) {
    case ISTHMUS_FUSED_ALLGATHER_GEMM: return "ALLGATHER_GEMM";
    case ISTHMUS_FUSED_GEMM_REDUCE_SCATTER: return "GEMM_REDUCE_SCATTER";
    case ISTHMUS_FUSED_GEMM_ALLREDUCE: return "GEMM_ALLREDUCE";
  }
  return "";
}

std::uint64_t fused_problem::a_extent() const {
  return matrix_extent(a_rows(), description.k, description.lda);
}
std::uint64_t fused_problem::b_extent() const {
  return description.b_layout == ISTHMUS_ROW_MAJOR
             ? matrix_extent(description.k, description.n, description.ldb)
             : matrix_extent(description.n, description.k, description.ldb);
}
std::uint64_t fused_problem::c_extent() const {
  return matrix_extent(c_rows(), description.n, description.ldc);
}
double fused_problem::flops(std::uint64_t rows) const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(description.n) *
         static_cast<double>(description.k);
}

fused_problem agree_on_problem(communicator& owner, const isthmus_fused_description* description) {
  owner.check_alive();
  fused_problem problem;
  declaration own_declaration{};
  const auto failure = capture_error([&] {
    problem = check_description(owner, description);
    const auto fields = list_fields(problem.description);
    for (std::size_t index = 0; index < field_count; ++index) own_declaration[index] = fields[index].value;
  });
  const auto all =
      agree(owner.control(), own_declaration, failure, "fused_plan_create: the description is refused");
  check_declarations(all, problem.description);
  return problem;
}

void check_arguments(const fused_problem& problem, isthmus_platform platform,
                     const isthmus_fused_arguments* arguments) {
  if (arguments == nullptr)
    throw argument_error(ISTHMUS_HERE, "arguments is NULL", "pass the address of an isthmus_fused_arguments");
  if (arguments->struct_bytes < sizeof *arguments)
    throw argument_error(
        ISTHMUS_HERE,
        fmt::format("struct_bytes = {} must be at least {}", arguments->struct_bytes, sizeof *arguments),
        "zero-initialize the arguments and set struct_bytes = sizeof(isthmus_fused_arguments)");
  if (platform == ISTHMUS_PLATFORM_HOST && arguments->stream != nullptr)
    throw argument_error(ISTHMUS_HERE,
                         fmt::format("stream = {} must be NULL on the host platform", arguments->stream),
                         "pass NULL: host runs are complete when they return");
  check_scalars(problem, *arguments);
  const std::uint64_t in = problem.input_bytes(), out = problem.output_bytes();
  const memory_range a{"a", arguments->a, problem.a_extent() * in},
      b{"b", arguments->b, problem.b_extent() * in}, c{"c", arguments->c, problem.c_extent() * out},
      bias{"bias", arguments->bias, problem.description.n * out},
      gathered{"gathered_a", arguments->gathered_a,
               problem.is_gather() ? problem.description.m * problem.description.k * in : 0};
  check_buffer(a, in, false);
  check_buffer(b, in, false);
  check_buffer(c, out, false);
  check_buffer(bias, out, true);
  check_buffer(gathered, in, true);
  for (const memory_range& other : {a, b, bias, gathered}) check_overlap(c, other);
  for (const memory_range& other : {b, bias}) check_overlap(gathered, other);
  const auto* own = static_cast<const std::byte*>(arguments->gathered_a) +
                    static_cast<std::uint64_t>(problem.rank) * problem.moved_bytes();
  const bool is_in_place =
      gathered.begin != nullptr && arguments->a == own && problem.description.lda == problem.description.k;
  if (!is_in_place) check_overlap(gathered, a);
}

}  // namespace isthmus::fused
