// Common parts of the fuzz targets. A target is a function of bytes, called by libFuzzer (make fuzz) or by
// replay.cpp with the files of the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

// Checks a condition and aborts if it is false, which the fuzzer reports as a finding.
inline void require(bool is_true, const char* message) {
  if (is_true) return;
  std::fprintf(stderr, "fuzz: %s\n", message);
  std::abort();
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Reads consecutive values from the input; returns zeros after its end.
class reader {
 public:
  reader(const std::uint8_t* data, std::size_t size) : m_remaining(data, size) {}

  template <typename Value>
  Value take() {
    Value value{};
    const std::size_t bytes = m_remaining.size() < sizeof value ? m_remaining.size() : sizeof value;
    if (bytes > 0) std::memcpy(&value, m_remaining.data(), bytes);
    m_remaining = m_remaining.subspan(bytes);
    return value;
  }

 private:
  std::span<const std::uint8_t> m_remaining;
};

}  // namespace fuzz
