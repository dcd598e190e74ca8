#include "backends/copy_engine/settings.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <isthmus/plugin.hpp>

namespace isthmus::copy_engine {
namespace {

template <typename Number>
std::string read(const isthmus_backend_context& context, const char* key, Number most, Number& result,
                 Number least = 0) {
  const char* text = context.option(context.runtime, key);
  if (text == nullptr) return "";
  const char* end = text + std::strlen(text);
  const auto [rest, problem] = std::from_chars(text, end, result);
  if (problem == std::errc{} && rest == end && result >= least && result <= most) return "";
  return fmt::format("option backend.copy_engine.{} = \"{}\" must be a whole number from {} to {}", key, text,
                     least, most);
}

}  // namespace

std::string read_settings(const isthmus_backend_context& context, settings& result) {
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 40;
  std::string problem = read(context, "staging_bytes", most_bytes, result.staging_bytes);
  if (problem.empty()) problem = read(context, "batch_bytes", most_bytes, result.batch_bytes);
  // Several links to several peers (xGMI, Xe Link) need as many copies at once; behind an NVLink switch one
  // copy fills the port.
  const bool behind_switch = context.device.platform == ISTHMUS_PLATFORM_CUDA;
  result.streams = behind_switch ? 1 : 0;
  // There ranks that start together also keep in step: each port has one sender and one receiver at a time.
  result.wait_all_bytes = behind_switch ? most_bytes : std::uint64_t{1} << 20;
  if (problem.empty()) problem = read(context, "streams", 64, result.streams);
  if (problem.empty()) problem = read(context, "wait_all_bytes", most_bytes, result.wait_all_bytes);
  if (problem.empty()) problem = read(context, "reduction_blocks", 65535, result.reduction_blocks, 1);
  if (problem.empty()) problem = read_flag(context, "share_device", result.share_device);
  return problem;
}

}  // namespace isthmus::copy_engine
