// Uses what format.cc of fmt instantiates, to check that fmt.cpp provides it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

int main() try {
  const std::string text =
      fmt::format("{:>8} {:.3f} {} {:x} {:L}\n", std::string("a"), 1.5, 2.5f, 255u, 1234567);
  fmt::print("{} {}", text, fmt::join(std::vector<int>{1, 2}, ", "));
  return 0;
} catch (const fmt::format_error&) {
  return 1;
}
