#include "operators/allreduce_rmsnorm/allreduce_rmsnorm.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "base/tables.hpp"
#include "core/group.hpp"
#include "operators/allreduce_rmsnorm/normalize.hpp"

namespace isthmus {
namespace {

using call_arguments = isthmus_allreduce_rmsnorm_arguments;

// The size of the arguments in their first version. Members that an older program's struct lacks are set to 0.
constexpr std::size_t min_arguments_bytes = offsetof(call_arguments, round_before_weight);

error invalid(const char* location, const std::string& message, const char* hint) {
  return invalid_argument(location, "allreduce_rmsnorm: " + message, hint);
}

struct buffer {
  const char* name;
  const void* begin;
  std::uint64_t bytes;

  bool overlaps(const buffer& other) const {
    const auto first = reinterpret_cast<std::uintptr_t>(begin),
               second = reinterpret_cast<std::uintptr_t>(other.begin);
    return first < second + other.bytes && second < first + bytes;
  }
};

void check_datatypes(const call_arguments& arguments) {
  for (const auto& [name, datatype] : {std::pair("datatype", arguments.datatype), {"output", arguments.output}})
    if (datatype < 0 || datatype >= ISTHMUS_DATATYPE_COUNT)
      throw out_of_range(ISTHMUS_HERE, fmt::format("allreduce_rmsnorm: {}", name), static_cast<int>(datatype),
                         ISTHMUS_DATATYPE_COUNT, "use an ISTHMUS_ datatype of types.h");
  if (arguments.datatype != ISTHMUS_FLOAT16 && arguments.datatype != ISTHMUS_BFLOAT16 &&
      arguments.datatype != ISTHMUS_FLOAT32)
    throw invalid(ISTHMUS_HERE,
                  fmt::format("datatype = {} must be float16, bfloat16 or float32",
                              isthmus_datatype_name(arguments.datatype)),
                  "convert the inputs to one of these types");
  if (arguments.output != arguments.datatype && arguments.output != ISTHMUS_FLOAT8_E4M3)
    throw invalid(
        ISTHMUS_HERE,
        fmt::format("output = {} must be {}, the datatype of the inputs, or float8_e4m3",
                    isthmus_datatype_name(arguments.output), isthmus_datatype_name(arguments.datatype)),
        "convert the normalized rows after the call");
}

void check_sizes(const call_arguments& arguments) {
  if (arguments.hidden == 0 || arguments.hidden > ISTHMUS_RMSNORM_MAX_HIDDEN)
    throw invalid(ISTHMUS_HERE,
                  fmt::format("hidden = {} must be in [1, {}]", arguments.hidden, ISTHMUS_RMSNORM_MAX_HIDDEN),
                  "use allreduce and a separate kernel for longer rows");
  const auto bytes = checked_product(arguments.tokens, arguments.hidden * bytes_of(arguments.datatype));
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw invalid(ISTHMUS_HERE,
                  fmt::format("tokens = {} rows of {} elements do not fit the address space", arguments.tokens,
                              arguments.hidden),
                  "check for a negative value that became unsigned");
  if (!std::isfinite(arguments.eps) || arguments.eps < 0 ||
      arguments.eps > static_cast<double>(std::numeric_limits<float>::max()))
    throw invalid(ISTHMUS_HERE, fmt::format("eps = {} must be a finite float32 of at least 0", arguments.eps),
                  "pass the eps of the model, for example 1e-6");
}

void check_scales(const call_arguments& arguments) {
  const bool is_quantized = arguments.output == ISTHMUS_FLOAT8_E4M3;
  if (!is_quantized && (arguments.scale != nullptr || arguments.scales != nullptr))
    throw invalid(ISTHMUS_HERE,
                  fmt::format("{} must be NULL if output = {}", arguments.scale != nullptr ? "scale" : "scales",
                              isthmus_datatype_name(arguments.output)),
                  "scales belong to the output float8_e4m3");
  if (is_quantized && arguments.tokens != 0 && (arguments.scale == nullptr) == (arguments.scales == nullptr))
    throw invalid(
        ISTHMUS_HERE,
        fmt::format("scale and scales are both {}, but output = float8_e4m3 needs exactly one of them",
                    arguments.scale == nullptr ? "NULL" : "set"),
        "pass `scale` with one scale for all rows, or `scales` to receive one scale for each row");
}

void check_buffers(const call_arguments& arguments) {
  const std::uint64_t width = bytes_of(arguments.datatype), count = arguments.tokens * arguments.hidden;
  const buffer input{"input", arguments.input, count * width},
      residual{"residual", arguments.residual, count * width},
      weight{"weight", arguments.weight, arguments.hidden * width},
      residual_out{"residual_out", arguments.residual_out, count * width},
      normalized{"normalized", arguments.normalized, count * bytes_of(arguments.output)},
      scale{"scale", arguments.scale, arguments.scale != nullptr ? sizeof(float) : 0},
      scales{"scales", arguments.scales, arguments.scales != nullptr ? arguments.tokens * sizeof(float) : 0};
  for (const buffer& each : {input, residual, weight, residual_out, normalized})
    require_not_null(ISTHMUS_HERE, "allreduce_rmsnorm", each.name, each.begin, "pass a buffer, or tokens = 0");
  const auto check_overlap = [&](const buffer& out, const buffer& other) {
    const bool is_alias = (&out == &residual_out && (&other == &input || &other == &residual)) ||
                          (&out == &normalized && &other == &input);
    const bool is_allowed = is_alias && out.begin == other.begin && out.bytes == other.bytes;
    if (out.overlaps(other) && !is_allowed)
      throw invalid(
          ISTHMUS_HERE,
          fmt::format("{} [{}, +{} bytes) overlaps {} [{}, +{} bytes)", out.name, out.begin, out.bytes,
                      other.name, other.begin, other.bytes),
          "residual_out may be residual or input, and normalized may be input; any other overlap is an error");
  };
  for (const buffer* const other : {&input, &residual, &weight, &scale}) {
    check_overlap(residual_out, *other);
    check_overlap(normalized, *other);
    check_overlap(scales, *other);
  }
  const auto check_outputs = [&](const buffer& a, const buffer& b) {
    if (a.overlaps(b))
      throw invalid(ISTHMUS_HERE, fmt::format("{} [{}] and {} [{}] overlap", a.name, a.begin, b.name, b.begin),
                    "pass separate buffers for the outputs");
  };
  check_outputs(residual_out, normalized);
  check_outputs(residual_out, scales);
  check_outputs(normalized, scales);
}

// Returns the caller's validated arguments.
call_arguments read_arguments(const communicator& ranks, const call_arguments* user_arguments) {
  group::reject_active("allreduce_rmsnorm");
  require_not_null(ISTHMUS_HERE, "allreduce_rmsnorm", "arguments", user_arguments,
                   "pass the address of an isthmus_allreduce_rmsnorm_arguments");
  if (user_arguments->struct_bytes < min_arguments_bytes)
    throw invalid(
        ISTHMUS_HERE,
        fmt::format("struct_bytes = {} must be at least {}", user_arguments->struct_bytes, min_arguments_bytes),
        "zero-initialize the arguments and set struct_bytes = sizeof(isthmus_allreduce_rmsnorm_arguments)");
  call_arguments arguments{};
  std::memcpy(&arguments, user_arguments, std::min(user_arguments->struct_bytes, sizeof arguments));
  check_datatypes(arguments);
  check_sizes(arguments);
  check_scales(arguments);
  if (arguments.round_before_weight != 0 && arguments.round_before_weight != 1)
    throw invalid(ISTHMUS_HERE,
                  fmt::format("round_before_weight = {} must be 0 or 1", arguments.round_before_weight),
                  "zero-initialize the arguments");
  if (ranks.ranks().device.platform == ISTHMUS_PLATFORM_HOST && arguments.stream != nullptr)
    throw invalid(ISTHMUS_HERE, fmt::format("stream = {} must be NULL on the host platform", arguments.stream),
                  "pass NULL: host calls are complete when they return");
  if (arguments.tokens != 0) check_buffers(arguments);
  return arguments;
}

// Errors: throws error (MISMATCH) on all ranks.
void compare_arguments(communicator& ranks, const call_arguments& arguments) {
  struct agreed_arguments {
    std::uint64_t tokens, hidden;
    std::int32_t datatype, output, has_scales, round_before_weight;
    float eps;
    bool operator==(const agreed_arguments&) const = default;
  };
  const agreed_arguments own{arguments.tokens,
                             arguments.hidden,
                             arguments.datatype,
                             arguments.output,
                             arguments.scales != nullptr ? 1 : 0,
                             arguments.round_before_weight,
                             static_cast<float>(arguments.eps)};
  std::vector<agreed_arguments> all(static_cast<std::size_t>(ranks.ranks().size));
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLGATHER;
  operation.datatype = ISTHMUS_UINT8;
  operation.count = sizeof own;
  operation.send_buf = &own;
  operation.recv_buf = all.data();
  ranks.enqueue(operation);
  const auto other =
      std::ranges::find_if_not(all, [&](const agreed_arguments& each) { return each == all[0]; });
  if (other == all.end()) return;
  const auto describe = [](const agreed_arguments& each) {
    return fmt::format(
        "tokens = {}, hidden = {}, datatype = {}, output = {}{}, eps = {} and round_before_weight = {}",
        each.tokens, each.hidden, isthmus_datatype_name(static_cast<isthmus_datatype>(each.datatype)),
        isthmus_datatype_name(static_cast<isthmus_datatype>(each.output)),
        each.has_scales != 0 ? " with scales" : "", each.eps, each.round_before_weight);
  };
  throw make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                   fmt::format("allreduce_rmsnorm: rank {} passed {}, but rank 0 passed {}",
                               other - all.begin(), describe(*other), describe(all[0])),
                   "pass the same sizes, datatypes, eps, rounding and kind of scale on all ranks");
}

void run_on_host(communicator& ranks, isthmus_operation operation) {
  const std::uint64_t row_bytes = operation.rmsnorm->hidden * bytes_of(operation.datatype);
  // The outputs can be inputs, and nothing may be written if the allreduce fails.
  std::vector<std::byte> sums(operation.count * bytes_of(operation.datatype));
  isthmus_operation allreduce = operation;
  allreduce.rmsnorm = nullptr;
  allreduce.recv_buf = sums.data();
  ranks.enqueue(allreduce);
  row_normalizer rows(operation);
  for (std::uint64_t row = 0; row * row_bytes < sums.size(); ++row)
    rows.normalize(row, sums.data() + row * row_bytes);
}

}  // namespace

void allreduce_rmsnorm(communicator& ranks, const isthmus_allreduce_rmsnorm_arguments* user_arguments) {
  ranks.check_alive();
  const call_arguments arguments = read_arguments(ranks, user_arguments);
  const bool is_host = ranks.ranks().device.platform == ISTHMUS_PLATFORM_HOST;
  const isthmus_rmsnorm norm{.hidden = arguments.hidden,
                             .residual = arguments.residual,
                             .weight = arguments.weight,
                             .normalized = arguments.normalized,
                             .output = arguments.output,
                             .scale = arguments.scale,
                             .scales = arguments.scales,
                             .eps = static_cast<float>(arguments.eps),
                             .round_before_weight = arguments.round_before_weight};
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = arguments.datatype;
  operation.count = arguments.tokens * arguments.hidden;
  operation.send_buf = arguments.input;
  operation.recv_buf = arguments.residual_out;
  operation.stream = arguments.stream;
  operation.rmsnorm = &norm;
  if (!is_host) return arguments.tokens == 0 ? void() : ranks.enqueue(operation);
  try {
    if (ranks.ranks().size > 1) compare_arguments(ranks, arguments);
    if (arguments.tokens != 0) run_on_host(ranks, operation);
  } catch (const std::bad_alloc&) {  // the other ranks wait for this rank
    failure_info failure =
        make_error(ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE, "allreduce_rmsnorm: no host memory for the sums",
                   "pass fewer tokens in one call")
            .info();
    failure.rank = ranks.ranks().rank;
    ranks.abort(failure);
    throw error(failure);
  }
}

}  // namespace isthmus
