// Accesses to user buffers of any alignment, in groups of 8 or 16 bytes. Bytes past the end of a buffer read as zero and
// are not written.
#pragma once

#include "backends/p2p/instructions.cuh"

namespace isthmus::p2p {

// `Words` 32-bit words, the content of one access.
template <int Words>
struct alignas(4 * Words) word_group {
  std::uint32_t words[Words];
};

// The slow paths are not inlined, so they use no registers of the fast paths.
template <int Words>
__device__ __noinline__ word_group<Words> load_group_slowly(const std::byte* source, std::uint64_t left) {
  word_group<Words> group{};
  const bool are_words_aligned = reinterpret_cast<std::uintptr_t>(source) % 4 == 0;
  for (unsigned word = 0; word < Words; ++word) {
    const std::byte* from = source + 4 * word;
    if (are_words_aligned && 4 * word + 4 <= left) {
      group.words[word] = *reinterpret_cast<const std::uint32_t*>(from);
      continue;
    }
    for (unsigned i = 0; i < 4; ++i)
      if (4 * word + i < left)
        group.words[word] |= static_cast<std::uint32_t>(static_cast<unsigned char>(from[i])) << (8 * i);
  }
  return group;
}

template <int Words>
__device__ __noinline__ void store_group_slowly(std::byte* destination, std::uint64_t left,
                                                word_group<Words> group) {
  const bool are_words_aligned = reinterpret_cast<std::uintptr_t>(destination) % 4 == 0;
  for (unsigned word = 0; word < Words; ++word) {
    std::byte* to = destination + 4 * word;
    if (are_words_aligned && 4 * word + 4 <= left) {
      *reinterpret_cast<std::uint32_t*>(to) = group.words[word];
      continue;
    }
    for (unsigned i = 0; i < 4; ++i)
      if (4 * word + i < left) to[i] = static_cast<std::byte>(group.words[word] >> (8 * i));
  }
}

// Loads or stores the `index`-th group of a buffer with `bytes` bytes. Precondition: its first byte is inside.
template <int Words>
__device__ inline word_group<Words> load_group(const std::byte* buffer, std::uint64_t index,
                                               std::uint64_t bytes) {
  constexpr int width = 4 * Words;
  const std::byte* source = buffer + index * width;
  if (index * width + width <= bytes && reinterpret_cast<std::uintptr_t>(source) % width == 0)
    return *reinterpret_cast<const word_group<Words>*>(source);
  return load_group_slowly<Words>(source, bytes - index * width);
}

template <int Words>
__device__ inline void store_group(std::byte* buffer, std::uint64_t index, std::uint64_t bytes,
                                   word_group<Words> group) {
  constexpr int width = 4 * Words;
  std::byte* destination = buffer + index * width;
  if (index * width + width <= bytes && reinterpret_cast<std::uintptr_t>(destination) % width == 0)
    *reinterpret_cast<word_group<Words>*>(destination) = group;
  else
    store_group_slowly<Words>(destination, bytes - index * width, group);
}

}  // namespace isthmus::p2p
