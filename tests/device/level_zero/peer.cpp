// Peer process of level_zero_test: maps the block with the given handle, checks that its bytes are 0, 1, 2, ...
// (mod 251) and adds 1 to every byte. The exit status is 0 on success.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "device/driver.hpp"

int main(int count, char** arguments) {
  if (count != 3) return 64;
  const std::string hex = arguments[1];
  const unsigned long bytes = std::strtoul(arguments[2], nullptr, 10);
  isthmus::shared_handle handle{};
  for (std::size_t i = 0; i < handle.bytes.size(); ++i)
    handle.bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  std::string reason;
  isthmus::device_driver* driver = isthmus::device_driver::get(ISTHMUS_PLATFORM_LEVEL_ZERO, reason);
  if (driver == nullptr) return std::fprintf(stderr, "%s\n", reason.c_str()), 2;
  try {
    auto* data = static_cast<unsigned char*>(driver->import_shared(0, handle));
    for (unsigned long i = 0; i < bytes; ++i) {
      if (data[i] != i % 251) return std::fprintf(stderr, "byte %lu is %u\n", i, data[i]), 3;
      ++data[i];
    }
    driver->release_import(0, data);
  } catch (const isthmus::error& failure) {
    return std::fprintf(stderr, "%s\n", failure.what()), 4;
  }
  return 0;
}
