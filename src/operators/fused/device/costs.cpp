// Measures the cost of products and copies on this device when a plan is created. A formula would not work: the
// time of a product jumps with every wave of tiles and depends on the algorithm that the library chooses.
#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"
#include "operators/fused/device/plan.hpp"

namespace isthmus::fused {
namespace {

constexpr std::size_t samples = 16;  // row counts, in sixteenths of a shard
constexpr double chunk_default_us = 5.5,
                 pipeline_default_us = 10;          // the first was measured on H200
constexpr double host_us = 25, group_host_us = 19;  // measured with CUDA 13 on the host of H200s

struct device_measurement {
  std::array<double, samples> product_us;  // for (i + 1) sixteenths of a shard
  double full_us;
  double bytes_per_us, chunk_us, fixed_us;
  double collective_us;
};

// Interpolates linearly between the samples.
double interpolate(const device_measurement& costs, std::uint64_t shard_rows, std::uint64_t m,
                   std::uint64_t rows) {
  if (rows > shard_rows) return costs.full_us * static_cast<double>(rows) / static_cast<double>(m);
  const double position = static_cast<double>(rows) * samples / static_cast<double>(shard_rows) - 1;
  if (position <= 0) return costs.product_us[0];
  const auto lower = std::min(static_cast<std::size_t>(position), samples - 2);
  const double fraction = position - static_cast<double>(lower);
  return costs.product_us[lower] * (1 - fraction) + costs.product_us[lower + 1] * fraction;
}

// All ranks use the same costs, because the sender and the receiver of a chunk must agree on its rows.
device_measurement slowest_of(const std::vector<device_measurement>& ranks) {
  device_measurement slowest = ranks.front();
  for (const device_measurement& each : ranks) {
    for (std::size_t index = 0; index < samples; ++index)
      slowest.product_us[index] = std::max(slowest.product_us[index], each.product_us[index]);
    slowest.full_us = std::max(slowest.full_us, each.full_us);
    slowest.bytes_per_us = std::min(slowest.bytes_per_us, each.bytes_per_us);
    slowest.chunk_us = std::max(slowest.chunk_us, each.chunk_us);
    slowest.fixed_us = std::max(slowest.fixed_us, each.fixed_us);
    slowest.collective_us = std::max(slowest.collective_us, each.collective_us);
  }
  return slowest;
}

}  // namespace

template <typename Work>
double device_plan::time_us(int repetitions, native_stream stream, Work&& work) {
  work();
  m_driver.synchronize(m_device, stream);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repetitions; ++i) work();
  m_driver.synchronize(m_device, stream);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
         repetitions;
}

// Minimum of several measurements. In collective work, a delay of one rank delays all ranks.
template <typename Work>
double device_plan::min_time_us(int repetitions, native_stream stream, Work&& work) {
  double min_us = time_us(repetitions, stream, work);
  for (int repetition = 0; repetition < 2; ++repetition)
    min_us = std::min(min_us, time_us(repetitions, stream, work));
  return min_us;
}

// Minimum of several measurements, because the system can delay the host. Uses constant data. It is slightly faster
// than random data, but by the same amount for every candidate.
double device_plan::measure_product_us(std::uint64_t rows, std::byte* a, std::byte* b, std::byte* c) {
  const native_stream stream = m_copy.stream;
  const auto multiply = [&] {
    m_product.enqueue(a, m_problem.description.lda, rows, b, c, c, {1, 0, nullptr}, stream);
  };
  const double sample_us = time_us(1, stream, multiply);
  return min_time_us(std::clamp(static_cast<int>(400 / sample_us), 2, 20), stream, multiply);
}

// Collective: all ranks push at the same time, as in a run.
double device_plan::measure_link(const std::byte* from) {
  const std::uint64_t bytes = m_problem.moved_bytes();
  const native_stream stream = m_copy.stream;
  const auto push_next = [&] { copy(m_shared->buffer(m_problem.next()), from, bytes, stream); };
  gather_values(m_owner->control(), 0);
  const double sample_us = time_us(1, stream, push_next);
  const double push_us = min_time_us(std::clamp(static_cast<int>(1000 / sample_us), 2, 50), stream, push_next);
  gather_values(m_owner->control(), 0);
  return static_cast<double>(bytes) / push_us;
}

// Collective. Returns 0 on all ranks if no backend supports the collective.
double device_plan::measure_collective_us(std::byte* full_matrix) {
  std::byte* shard = m_shared->buffer(m_problem.rank);
  const bool is_gather = m_problem.is_gather();
  try {
    return min_time_us(5, m_copy.stream, [&] {
      enqueue_collective(is_gather ? shard : full_matrix, is_gather ? full_matrix : shard, m_copy.stream);
    });
  } catch (const error& failure) {
    if (failure.info().status != ISTHMUS_ERROR_UNSUPPORTED) throw;
    return 0;
  }
}

// Collective. Errors: all ranks throw error (CONFIG) if an option of a rank is invalid.
void device_plan::check_options() {
  const auto refusal = capture_error([&] {
    for (const char* key : {"link_gbs", "chunk_us", "pipeline_us"}) read_number_option(*m_owner, key, 1);
  });
  agree(m_owner->control(), no_value{}, refusal, "fused_plan_create: the configuration is invalid",
        ISTHMUS_ERROR_CONFIG);
}

cost_model device_plan::measure() {
  check_options();
  const auto pad = [](std::uint64_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::uint64_t a_bytes =
                          pad(m_problem.description.m * m_problem.description.lda * m_problem.input_bytes()),
                      b_bytes = pad(m_problem.b_extent() * m_problem.input_bytes()),
                      c_bytes =
                          pad(m_problem.description.m * m_problem.description.ldc * m_problem.output_bytes());
  const std::uint64_t bytes = std::max<std::uint64_t>(a_bytes + b_bytes + c_bytes, 1);
  const owned_memory scratch(m_driver, m_device, bytes);
  m_driver.fill(m_device, scratch, 0x3c, bytes, m_copy.stream);
  auto* a = static_cast<std::byte*>(scratch.get());
  std::byte* b = a + a_bytes;
  std::byte* c = b + b_bytes;
  device_measurement own{};
  for (std::size_t index = 0; index < samples; ++index) {
    const std::uint64_t rows = std::max<std::uint64_t>(1, m_problem.shard_rows * (index + 1) / samples);
    own.product_us[index] = measure_product_us(rows, a, b, c);
  }
  own.full_us = measure_product_us(m_problem.description.m, a, b, c);
  own.bytes_per_us =
      read_number_option(*m_owner, "link_gbs", measure_link(m_problem.is_gather() ? a : c) / 1e3) * 1e3;
  own.chunk_us = read_number_option(*m_owner, "chunk_us", chunk_default_us);
  own.fixed_us = read_number_option(*m_owner, "pipeline_us", pipeline_default_us);
  own.collective_us = measure_collective_us(m_problem.is_gather() ? a : c);

  const device_measurement slowest = slowest_of(gather_values(m_owner->control(), own));
  cost_model costs;
  costs.product_us = [slowest, shard = m_problem.shard_rows, m = m_problem.description.m](std::uint64_t rows) {
    return interpolate(slowest, shard, m, rows);
  };
  costs.bytes_per_us = slowest.bytes_per_us;
  costs.chunk_us = slowest.chunk_us;
  costs.fixed_us = slowest.fixed_us;
  costs.host_us = host_us;
  costs.group_host_us = group_host_us;
  costs.collective_us = slowest.collective_us;
  costs.source = fmt::format(
      "measured: product of a shard {:.0f} us, product of all rows {:.0f} us, {:.0f} GB/s to peers, {} "
      "{:.0f} us",
      slowest.product_us[samples - 1], slowest.full_us, costs.bytes_per_us / 1e3,
      isthmus_collective_name(m_problem.collective()), costs.collective_us);
  return costs;
}

}  // namespace isthmus::fused
