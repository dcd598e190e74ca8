#include "backends/copy_engine/settings.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <isthmus/plugin.hpp>

namespace isthmus::copy_engine {
namespace {

template <typename Number>
std::string read_number(const isthmus_backend_context& context, const char* key, Number max_value,
                        Number& result, Number min_value = 0) {
  const char* text = context.option(context.runtime, key);
  if (text == nullptr) return "";
  const char* end = text + std::strlen(text);
  const auto [rest, problem] = std::from_chars(text, end, result);
  if (problem == std::errc{} && rest == end && result >= min_value && result <= max_value) return "";
  return fmt::format("option backend.copy_engine.{} = \"{}\" must be an integer from {} to {}", key, text,
                     min_value, max_value);
}

}  // namespace

std::string read_settings(const isthmus_backend_context& context, settings& result) {
  constexpr std::uint64_t max_bytes = std::uint64_t{1} << 40;
  std::string problem = read_number(context, "staging_bytes", max_bytes, result.staging_bytes);
  if (problem.empty()) problem = read_number(context, "batch_bytes", max_bytes, result.batch_bytes);
  // With separate links to the peers (xGMI, Xe Link), one concurrent copy per link is needed. With an NVLink
  // switch, one copy saturates the port.
  const bool has_switch = context.device.platform == ISTHMUS_PLATFORM_CUDA;
  result.streams = has_switch ? 1 : 0;
  // With a switch, ranks that start at the same time also stay in lockstep: each port has one sender
  // and one receiver.
  result.wait_all_bytes = has_switch ? max_bytes : std::uint64_t{1} << 20;
  if (problem.empty()) problem = read_number(context, "streams", 64, result.streams);
  if (problem.empty()) problem = read_number(context, "wait_all_bytes", max_bytes, result.wait_all_bytes);
  if (problem.empty()) problem = read_number(context, "reduction_blocks", 65535, result.reduction_blocks, 1);
  if (problem.empty()) problem = read_flag(context, "share_device", result.can_share_device);
  return problem;
}

}  // namespace isthmus::copy_engine
