#include "pool.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace isthmus::torch_backend {
namespace {

// Sizes that differ a little share blocks.
std::uint64_t rounded(std::uint64_t bytes) {
  const std::uint64_t step = bytes <= (1u << 20) ? 1u << 9 : 1u << 21;
  return (bytes + step - 1) / step * step;
}

}  // namespace

at::Tensor pool::allocate(int64_t elements, const at::TensorOptions& options,
                          std::vector<c10::Stream> streams) {
  if (elements == 0) return at::empty({0}, options);
  const std::lock_guard allocating(m_allocating);
  const auto bytes = static_cast<std::uint64_t>(elements) * options.dtype().itemsize();
  heap_block& taken = take(rounded(bytes));
  for (const c10::Event& use : taken.last_uses) use.block(streams.front());
  taken.last_uses.clear();
  taken.streams = std::move(streams);
  return at::from_blob(
      taken.pointer, {elements}, [self = shared_from_this(), &taken](void*) { self->give_back(taken); },
      options, options.device());
}

pool::heap_block& pool::take(std::uint64_t bytes) {
  heap_block* chosen = choose(bytes);
  if (chosen == nullptr) {
    void* const fresh = m_endpoint->allocate(bytes);
    const std::lock_guard lock(m_mutex);
    chosen = &m_blocks.emplace_back(heap_block{fresh, bytes, true, {}, {}});
  }
  const std::lock_guard lock(m_mutex);
  chosen->is_free = false;
  return *chosen;
}

// The first block of this size that is free on every rank, or nullptr.
pool::heap_block* pool::choose(std::uint64_t bytes) {
  std::vector<heap_block*> candidates;
  std::vector<std::uint8_t> free;
  {
    const std::lock_guard lock(m_mutex);
    for (heap_block& each : m_blocks) {
      if (each.bytes != bytes) continue;
      candidates.push_back(&each);
      free.push_back(each.is_free ? 1 : 0);
    }
  }
  if (candidates.empty()) return nullptr;
  owned_operation vote;
  vote.operation.collective = ISTHMUS_ALLREDUCE;
  vote.operation.datatype = ISTHMUS_UINT8;
  vote.operation.op = ISTHMUS_MIN;
  vote.operation.count = free.size();
  vote.operation.send_buf = vote.operation.recv_buf = free.data();
  m_ballot->launch({vote}, nullptr);
  for (std::size_t index = 0; index < free.size(); ++index)
    if (free[index] == 1) return candidates[index];
  return nullptr;
}

// Runs where the last reference to a tensor goes, at exit too, when there may be no device any more.
void pool::give_back(heap_block& freed) noexcept {
  const std::lock_guard lock(m_mutex);
  try {
    for (const c10::Stream& stream : freed.streams) {
      c10::Event use(stream.device_type());
      use.record(stream);
      freed.last_uses.push_back(std::move(use));
    }
  } catch (const std::exception& failure) {
    TORCH_WARN("isthmus: a tensor of the symmetric heap was not freed: ", failure.what());
    return;  // not free: whoever used it might not be done
  }
  freed.is_free = true;
  if (m_closed) release(freed);
}

// Freeing unmaps at once, whatever still runs.
void pool::release(heap_block& unused) noexcept {
  try {
    for (const c10::Event& use : unused.last_uses) use.synchronize();
  } catch (const std::exception& failure) {
    TORCH_WARN("isthmus: memory of the symmetric heap was not freed: ", failure.what());
    return;
  }
  m_endpoint->free(unused.pointer);
}

void pool::close() noexcept {
  const std::lock_guard lock(m_mutex);
  if (m_closed) return;
  m_closed = true;
  for (heap_block& each : m_blocks)
    if (each.is_free) release(each);
  m_ballot->close();
}

}  // namespace isthmus::torch_backend
