// C entry points of tools.h.
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "device/driver.hpp"
#include "kernels/kernels.hpp"
#include "recorder/diagnosis.hpp"
#include "selection/selection.hpp"

namespace {

void check_reduce_arguments(const void* in_buf, const void* inout_buf, std::uint64_t count,
                            unsigned datatype_number, unsigned op_number) {
  if (datatype_number >= ISTHMUS_DATATYPE_COUNT)
    throw isthmus::out_of_range(ISTHMUS_HERE, "reduce_local: datatype", datatype_number, ISTHMUS_DATATYPE_COUNT,
                                "use an isthmus_datatype value of isthmus/types.h");
  if (op_number >= ISTHMUS_REDUCTION_OP_COUNT)
    throw isthmus::out_of_range(ISTHMUS_HERE, "reduce_local: op", op_number, ISTHMUS_REDUCTION_OP_COUNT,
                                "use an isthmus_reduction_op value of isthmus/types.h");
  if (count == 0) return;
  if (in_buf == nullptr || inout_buf == nullptr)
    throw isthmus::invalid_argument(ISTHMUS_HERE,
                                    fmt::format("reduce_local: {} is NULL, but count = {}",
                                                in_buf == nullptr ? "in_buf" : "inout_buf", count),
                                    "pass a buffer of count elements; NULL is only allowed for count 0");
}

void check_speeds(std::span<const double> speeds) {
  for (std::size_t i = 0; i < speeds.size(); ++i)
    if (!std::isfinite(speeds[i]) || speeds[i] < 0)
      throw isthmus::invalid_argument(
          ISTHMUS_HERE, fmt::format("partition: speeds[{}] = {} must be finite and >= 0", i, speeds[i]),
          "pass elements per second, or the inverse of a time");
  if (std::ranges::all_of(speeds, [](double speed) { return speed == 0; }))
    throw isthmus::invalid_argument(ISTHMUS_HERE, "partition: speeds must not all be 0",
                                    "pass a positive speed for at least one rank");
}

void check_partition_arguments(const double* speeds, int n, std::uint64_t granularity, const void* counts,
                               const void* displs) {
  const char* const violated_rule = n < 1               ? "partition: n must be >= 1"
                                    : granularity == 0  ? "partition: granularity must be >= 1"
                                    : speeds == nullptr ? "partition: speeds is NULL"
                                    : counts == nullptr ? "partition: counts is NULL"
                                    : displs == nullptr ? "partition: displs is NULL"
                                                        : nullptr;
  if (violated_rule != nullptr)
    throw isthmus::invalid_argument(ISTHMUS_HERE, violated_rule, "pass arrays with one entry for each rank");
  check_speeds({speeds, static_cast<std::size_t>(n)});
}

// Distributes `granules` in proportion to the speeds, with the largest remainder method.
std::vector<std::uint64_t> distribute_granules(std::span<const double> speeds, std::uint64_t granules) {
  const double max_speed =
      std::ranges::max(speeds);  // normalized, so that the sum of finite speeds cannot overflow
  long double total = 0;
  for (const double speed : speeds) total += static_cast<long double>(speed) / max_speed;
  std::vector<std::uint64_t> shares(speeds.size());
  std::vector<long double> remainders(speeds.size());
  std::uint64_t remaining = granules;
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    const long double exact =
        static_cast<long double>(speeds[i]) / max_speed / total * static_cast<long double>(granules);
    // Above 2^63, a rounded share could exceed the remaining granules.
    shares[i] = std::min(remaining, static_cast<std::uint64_t>(exact));
    remainders[i] = exact - static_cast<long double>(shares[i]);
    remaining -= shares[i];
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < speeds.size(); ++i)
    if (speeds[i] > 0) order.push_back(i);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return remainders[i]; });
  for (std::size_t next = 0; remaining > 0; --remaining, next = (next + 1) % order.size())
    ++shares[order[next]];
  return shares;
}

}  // namespace

// C callers can pass any number as an enumerator, so the check uses the unsigned number.
isthmus_status isthmus_reduce_local(const void* in_buf, void* inout_buf, uint64_t count,
                                    isthmus_datatype datatype, isthmus_reduction_op op) {
  const auto datatype_number = static_cast<unsigned>(datatype);
  const auto op_number = static_cast<unsigned>(op);
  return isthmus::guard([&] {
    check_reduce_arguments(in_buf, inout_buf, count, datatype_number, op_number);
    const unsigned kernel_op =
        op_number == ISTHMUS_AVG ? unsigned{ISTHMUS_SUM} : op_number;  // the caller divides
    const void* const sources[2] = {in_buf, inout_buf};
    isthmus::cpu::kernels().reduce[datatype_number][kernel_op](inout_buf, sources, 2, count);
  });
}

isthmus_status isthmus_partition(const double* speeds, int n, uint64_t count, uint64_t granularity,
                                 uint64_t* counts, uint64_t* displs) {
  return isthmus::guard([&] {
    check_partition_arguments(speeds, n, granularity, counts, displs);
    const std::span<const double> all_speeds(speeds, static_cast<std::size_t>(n));
    std::vector<std::uint64_t> shares = distribute_granules(all_speeds, count / granularity);
    for (std::uint64_t& share : shares) share *= granularity;
    // The last nonempty share receives the remainder; if no rank has a granule, the fastest rank gets it.
    auto last = std::find_if(shares.rbegin(), shares.rend(), [](std::uint64_t share) { return share > 0; });
    const auto fastest = static_cast<std::size_t>(std::ranges::max_element(all_speeds) - all_speeds.begin());
    (last != shares.rend() ? *last : shares[fastest]) += count % granularity;
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      counts[i] = shares[i];
      displs[i] = next;
      next += shares[i];
    }
  });
}

isthmus_status isthmus_stream_is_capturing(isthmus_device device, isthmus_stream stream, int* is_capturing) {
  constexpr const char* function = "stream_is_capturing";
  return isthmus::guard([&] {
    isthmus::check_device(ISTHMUS_HERE, function, device);
    isthmus::require_not_null(ISTHMUS_HERE, function, "is_capturing", is_capturing);
    *is_capturing = 0;
    if (isthmus::is_null_stream(stream) || device.platform == ISTHMUS_PLATFORM_HOST)
      return;  // no driver is needed for these
    std::string reason;
    isthmus::device_driver* const driver = isthmus::device_driver::get(device.platform, reason);
    if (driver == nullptr)
      throw isthmus::make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                                fmt::format("{}: {}", function, reason), "install the driver of this platform");
    *is_capturing = driver->is_capturing(device.ordinal, stream) ? 1 : 0;
  });
}

// For `isthmus doctor` and `isthmus trace merge`.
isthmus_status isthmus_diagnose(int64_t pid, const char* job, const char* trace_folder, char* json,
                                size_t capacity, size_t* required_bytes) {
  return isthmus::guard([&] {
    if (pid < 0)
      throw isthmus::invalid_argument(ISTHMUS_HERE, fmt::format("diagnose: pid = {} must not be negative", pid),
                                      "pass 0 for all processes");
    const std::string text =
        isthmus::recorder::report(pid, job == nullptr ? "" : job, trace_folder == nullptr ? "" : trace_folder);
    isthmus::write_json(ISTHMUS_HERE, "diagnose", text, json, capacity, required_bytes);
  });
}

// For front ends that need a device's platform before they create a communicator.
isthmus_status isthmus_sycl_backend_platform(const char* config_path, const char* name, int number,
                                             isthmus_platform* platform, int* is_found) {
  return isthmus::guard([&] {
    if (platform == nullptr || is_found == nullptr) {
      throw isthmus::invalid_argument(ISTHMUS_HERE,
                                      "sycl_backend_platform: platform and is_found must not be NULL",
                                      "pass the address of a variable for each result");
    }
    *is_found = 0;
    const std::string number_text = std::to_string(number);
    for (const auto& [key, value] : isthmus::selection::load_configuration(config_path).sycl_backends) {
      if (key != number_text && (name == nullptr || key != name)) continue;
      *platform = value;
      *is_found = 1;
    }
  });
}
