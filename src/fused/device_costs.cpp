// What products and copies cost on this device: measured when a plan is made, because a product's time jumps
// with every wave of tiles and no formula knows what the library chooses.
#include <algorithm>
#include <array>
#include <chrono>
#include <map>

#include "fused/device_gather_plan.hpp"
#include "runtime/exchange.hpp"

namespace isthmus::fused {
namespace {

constexpr std::size_t samples = 16;  // row counts, in sixteenths of a shard
constexpr double chunk_default_us = 6, pipeline_default_us = 10;

struct measured {
  std::array<double, samples> product_us;  // of (i + 1) sixteenths of a shard
  double whole_us;
  double bytes_per_us;
};

// Linear between the samples, which contain the steps.
double interpolate(const measured& figures, std::uint64_t shard_rows, std::uint64_t m, std::uint64_t rows) {
  if (rows > shard_rows) return figures.whole_us * static_cast<double>(rows) / static_cast<double>(m);
  const double place = static_cast<double>(rows) * samples / static_cast<double>(shard_rows) - 1;
  if (place <= 0) return figures.product_us[0];
  const auto below = std::min(static_cast<std::size_t>(place), samples - 2);
  const double part = place - static_cast<double>(below);
  return figures.product_us[below] * (1 - part) + figures.product_us[below + 1] * part;
}

}  // namespace

template <typename Work>
double device_gather_plan::time_us(int repetitions, native_stream stream, Work&& work) {
  work();
  m_driver.synchronize(m_device, stream);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repetitions; ++i) work();
  m_driver.synchronize(m_device, stream);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
         repetitions;
}

// On whatever the buffers hold: zeros are a little faster than data, for every candidate alike.
double device_gather_plan::measure_product_us(std::uint64_t rows, native_stream stream) {
  const std::uint64_t b_bytes = std::max<std::uint64_t>(m_what.b_extent() * m_what.input_bytes(), 1);
  const std::uint64_t c_bytes = std::max<std::uint64_t>(m_what.c_extent() * m_what.output_bytes(), 1);
  if (m_scratch == nullptr) {
    m_scratch = m_driver.allocate(m_device, b_bytes + 256 + c_bytes);
    m_driver.fill(m_device, m_scratch, 0x3c, b_bytes + 256 + c_bytes, stream);
  }
  isthmus_fused_arguments with{};
  with.b = m_scratch;
  with.c = static_cast<std::byte*>(m_scratch) + (b_bytes + 255) / 256 * 256;
  with.alpha = 1;
  with.stream = stream;
  const double once = time_us(1, stream, [&] { multiply(m_gathered, 0, rows, with); });
  return time_us(std::clamp(static_cast<int>(400 / once), 2, 20), stream,
                 [&] { multiply(m_gathered, 0, rows, with); });
}

// All ranks pull at the same time, as in a run.
double device_gather_plan::measure_link(native_stream stream) {
  const std::uint64_t bytes = m_what.shard_bytes();
  const auto pull_next = [&] {
    copy(m_gathered, m_board->stage((m_what.rank + 1) % m_what.size), bytes, stream);
  };
  gather_values(m_owner->meeting(), 0);
  const double once = time_us(1, stream, pull_next);
  const double us = time_us(std::clamp(static_cast<int>(1000 / once), 2, 50), stream, pull_next);
  gather_values(m_owner->meeting(), 0);
  return static_cast<double>(bytes) / us;
}

costs device_gather_plan::measure() {
  m_gathered = gathered({});
  measured own{};
  m_driver.fill(m_device, m_gathered, 0x3c, m_workspace_bytes, m_copy.stream);
  for (std::size_t index = 0; index < samples; ++index) {
    const std::uint64_t rows = std::max<std::uint64_t>(1, m_what.shard_rows * (index + 1) / samples);
    own.product_us[index] = measure_product_us(rows, m_copy.stream);
  }
  own.whole_us = measure_product_us(m_what.asked.m, m_copy.stream);
  own.bytes_per_us = measure_link(m_copy.stream);
  if (m_scratch != nullptr) m_driver.free(m_device, m_scratch);
  m_scratch = nullptr;

  const auto all = gather_values(m_owner->meeting(), own);
  measured worst = own;
  for (const measured& each : all) {
    for (std::size_t index = 0; index < samples; ++index)
      worst.product_us[index] = std::max(worst.product_us[index], each.product_us[index]);
    worst.whole_us = std::max(worst.whole_us, each.whole_us);
    worst.bytes_per_us = std::min(worst.bytes_per_us, each.bytes_per_us);
  }
  costs figures;
  figures.product_us = [worst, shard = m_what.shard_rows, m = m_what.asked.m](std::uint64_t rows) {
    return interpolate(worst, shard, m, rows);
  };
  figures.bytes_per_us = number_option(*m_owner, "link_gbs", worst.bytes_per_us / 1e3) * 1e3;
  figures.chunk_us = number_option(*m_owner, "chunk_us", chunk_default_us);
  figures.fixed_us = number_option(*m_owner, "pipeline_us", pipeline_default_us);
  figures.source = fmt::format("measured: own shard {:.0f} us, whole {:.0f} us, {:.0f} GB/s from peers",
                               worst.product_us[samples - 1], worst.whole_us, figures.bytes_per_us / 1e3);
  return figures;
}

}  // namespace isthmus::fused
