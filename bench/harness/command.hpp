// Helpers for the command lines of benchmark programs.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace bench {

// Parses "8", "4K", "128M" or "1G" (powers of 1024).
inline std::uint64_t parse_bytes(const std::string& text) {
  std::size_t used = 0;
  std::uint64_t value = 0;
  try {
    value = std::stoull(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (used == 0 || shift < 0 || value > (UINT64_MAX >> shift))
    throw CLI::ValidationError("--sizes", "'" + text + "' is not a size; write bytes as 8, 4K, 128M or 1G");
  return value << shift;
}

// Parses "8:128M" (doubling), "8:128M:4" (multiplying by 4) or the list "8,1K,1M".
inline std::vector<std::uint64_t> parse_sizes(const std::string& text) {
  std::vector<std::uint64_t> sizes;
  const std::vector<std::string> parts = CLI::detail::split(text, ':');
  if (parts.size() == 1) {
    for (const std::string& item : CLI::detail::split(text, ',')) sizes.push_back(parse_bytes(item));
  } else {
    const std::uint64_t last = parse_bytes(parts[1]), factor = parts.size() > 2 ? parse_bytes(parts[2]) : 2;
    if (parts.size() > 3 || factor < 2)
      throw CLI::ValidationError("--sizes", "write FIRST:LAST or FIRST:LAST:FACTOR");
    for (std::uint64_t size = parse_bytes(parts[0]); size > 0 && size <= last; size *= factor) {
      sizes.push_back(size);
      if (size > last / factor) break;  // the next size could overflow 64 bits
    }
  }
  if (sizes.empty())
    throw CLI::ValidationError("--sizes", "'" + text + "' contains no size; write FIRST:LAST or a list");
  return sizes;
}

// The command line for records: the program by name, because its path is specific to this machine.
inline std::string command_of(int argc, char** argv) {
  std::string command = std::filesystem::path(argv[0]).filename().string();
  for (int i = 1; i < argc; ++i) command += " " + std::string(argv[i]);
  return command;
}

}  // namespace bench
