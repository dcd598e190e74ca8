#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "base/formats.inc.hpp"
#include "kernels/kernels.hpp"
#include "operators/tensor_parallel/tensor_parallel.hpp"

namespace isthmus::tensor_parallel {
namespace {

// A block stays in the L2 cache between its summation and the copies to every rank.
constexpr std::size_t block_bytes = std::size_t{64} * 1024;

struct host_state {
  explicit host_state(int ranks) : n(ranks) { sources.reserve(static_cast<std::size_t>(ranks)); }
  int n;
  std::vector<std::byte> sum = std::vector<std::byte>(block_bytes);
  // One block per rank, rounded as if it had been sent over a bfloat16 wire.
  std::vector<std::vector<std::uint16_t>> wire;
  std::vector<const void*> sources;
};

void* open(int n, const isthmus_device*, const isthmus_stream*, double, char* reason,
           std::size_t reason_bytes) {
  try {
    return new host_state(n);
  } catch (const std::bad_alloc&) {
    std::snprintf(reason, reason_bytes, "out of host memory");
    return nullptr;
  }
}

class summation {
 public:
  summation(host_state& state, void* const* pointers, isthmus_datatype datatype, std::uint64_t active)
      : m_state(state), m_pointers(pointers), m_datatype(datatype), m_active(active) {}

  void exact_block(std::uint64_t first, std::size_t length) {
    const std::size_t element = isthmus_datatype_bytes(m_datatype);
    auto& sources = m_state.sources;
    sources.clear();
    for (int rank = 0; rank < m_state.n; ++rank)
      if (is_active(rank)) sources.push_back(static_cast<std::byte*>(m_pointers[rank]) + first * element);
    if (sources.empty())
      std::memset(m_state.sum.data(), 0, length * element);
    else
      cpu::kernels().reduce[m_datatype][ISTHMUS_SUM](m_state.sum.data(), sources.data(),
                                                     static_cast<int>(sources.size()), length);
    for (int rank = 0; rank < m_state.n; ++rank)
      std::memcpy(static_cast<std::byte*>(m_pointers[rank]) + first * element, m_state.sum.data(),
                  length * element);
  }

  void bfloat16_block(std::uint64_t first, std::size_t length) {
    auto& sources = m_state.sources;
    sources.clear();
    for (int rank = 0; rank < m_state.n; ++rank) {
      if (!is_active(rank)) continue;
      auto& wire = m_state.wire[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < length; ++i) wire[i] = formats::bfloat16_format::store(load(rank, first + i));
      sources.push_back(wire.data());
    }
    auto* sum = reinterpret_cast<std::uint16_t*>(m_state.sum.data());
    if (sources.empty())
      std::memset(sum, 0, length * sizeof *sum);
    else
      cpu::kernels().reduce[ISTHMUS_BFLOAT16][ISTHMUS_SUM](sum, sources.data(),
                                                           static_cast<int>(sources.size()), length);
    for (int rank = 0; rank < m_state.n; ++rank)
      for (std::size_t i = 0; i < length; ++i) store(rank, first + i, formats::bfloat16_format::load(sum[i]));
  }

 private:
  bool is_active(int rank) const { return (m_active >> rank & 1u) != 0; }
  // Uses memcpy because host tensors need not be aligned to their element size.
  float load(int rank, std::uint64_t index) const {
    float value;
    std::memcpy(&value, static_cast<std::byte*>(m_pointers[rank]) + index * sizeof value, sizeof value);
    return value;
  }
  void store(int rank, std::uint64_t index, float value) const {
    std::memcpy(static_cast<std::byte*>(m_pointers[rank]) + index * sizeof value, &value, sizeof value);
  }

  host_state& m_state;
  void* const* m_pointers;
  isthmus_datatype m_datatype;
  std::uint64_t m_active;
};

bool allreduce(void* opaque, void* const* pointers, std::uint64_t count, isthmus_datatype datatype,
               std::uint64_t active, isthmus_tensor_parallel_algorithm, bool bfloat16_wire) {
  auto& state = *static_cast<host_state*>(opaque);
  const std::size_t element = isthmus_datatype_bytes(datatype);
  const std::size_t block = block_bytes / std::max<std::size_t>(element, 1);
  if (bfloat16_wire && state.wire.empty()) {
    try {
      state.wire.assign(static_cast<std::size_t>(state.n), std::vector<std::uint16_t>(block));
    } catch (const std::bad_alloc&) {
      return false;  // no tensor has been modified yet
    }
  }
  summation sum(state, pointers, datatype, active);
  for (std::uint64_t first = 0; first < count; first += block) {
    const std::size_t length = static_cast<std::size_t>(std::min<std::uint64_t>(block, count - first));
    if (bfloat16_wire)
      sum.bfloat16_block(first, length);
    else
      sum.exact_block(first, length);
  }
  return true;
}

void close(void* opaque) { delete static_cast<host_state*>(opaque); }

}  // namespace

const isthmus_tensor_parallel_engine& host_engine() noexcept {
  static const isthmus_tensor_parallel_engine engine = {.struct_bytes = sizeof(isthmus_tensor_parallel_engine),
                                                        .abi_version = ISTHMUS_TENSOR_PARALLEL_ENGINE_ABI,
                                                        .platforms = 1u << ISTHMUS_PLATFORM_HOST,
                                                        .name = "host",
                                                        .open = open,
                                                        .allreduce = allreduce,
                                                        .close = close};
  return engine;
}

}  // namespace isthmus::tensor_parallel
