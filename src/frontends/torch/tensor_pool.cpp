#include "tensor_pool.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace isthmus::torch_backend {
namespace {

// Rounds up, so that similar sizes share blocks.
std::uint64_t round_up(std::uint64_t bytes) {
  const std::uint64_t step = bytes <= (1u << 20) ? 1u << 9 : 1u << 21;
  return (bytes + step - 1) / step * step;
}

}  // namespace

at::Tensor tensor_pool::allocate(int64_t elements, const at::TensorOptions& options,
                                 std::vector<c10::Stream> streams) {
  if (elements == 0) return at::empty({0}, options);
  const std::lock_guard allocation_lock(m_allocation_mutex);
  const auto bytes = static_cast<std::uint64_t>(elements) * options.dtype().itemsize();
  heap_block& block = acquire(round_up(bytes));
  for (const c10::Event& use : block.last_uses) use.block(streams.front());
  block.last_uses.clear();
  block.streams = std::move(streams);
  return at::from_blob(
      block.pointer, {elements}, [self = shared_from_this(), &block](void*) { self->recycle(block); }, options,
      options.device());
}

tensor_pool::heap_block& tensor_pool::acquire(std::uint64_t bytes) {
  heap_block* block = find_common_block(bytes);
  if (block == nullptr) {
    void* const address = m_endpoint->allocate(bytes);
    const std::lock_guard lock(m_mutex);
    block = &m_blocks.emplace_back(heap_block{address, bytes, true, {}, {}});
  }
  const std::lock_guard lock(m_mutex);
  block->is_free = false;
  return *block;
}

// Returns the first block of this size that is free on every rank, or nullptr.
tensor_pool::heap_block* tensor_pool::find_common_block(std::uint64_t bytes) {
  std::vector<heap_block*> candidates;
  std::vector<std::uint8_t> free_flags;
  {
    const std::lock_guard lock(m_mutex);
    for (heap_block& block : m_blocks) {
      if (block.bytes != bytes) continue;
      candidates.push_back(&block);
      free_flags.push_back(block.is_free ? 1 : 0);
    }
  }
  if (candidates.empty()) return nullptr;
  owned_operation agreement;
  agreement.operation.collective = ISTHMUS_ALLREDUCE;
  agreement.operation.datatype = ISTHMUS_UINT8;
  agreement.operation.op = ISTHMUS_MIN;
  agreement.operation.count = free_flags.size();
  agreement.operation.send_buf = agreement.operation.recv_buf = free_flags.data();
  m_host_endpoint->launch({agreement}, nullptr);
  for (std::size_t index = 0; index < free_flags.size(); ++index)
    if (free_flags[index] == 1) return candidates[index];
  return nullptr;
}

// Called when the last reference to a tensor is released, possibly at exit, when the device may
// no longer exist.
void tensor_pool::recycle(heap_block& block) noexcept {
  if (m_endpoint->is_inherited()) return;
  const std::lock_guard lock(m_mutex);
  try {
    for (const c10::Stream& stream : block.streams) {
      c10::Event use(stream.device_type());
      use.record(stream);
      block.last_uses.push_back(std::move(use));
    }
  } catch (const std::exception& failure) {
    TORCH_WARN("isthmus: freeing a tensor of the symmetric heap failed: ", failure.what());
    return;  // not reusable, because the block may still be in use
  }
  block.is_free = true;
  if (m_is_closed) release(block);
}

// Waits for the last uses, because freeing unmaps the memory immediately.
void tensor_pool::release(heap_block& block) noexcept {
  try {
    for (const c10::Event& use : block.last_uses) use.synchronize();
  } catch (const std::exception& failure) {
    TORCH_WARN("isthmus: freeing memory of the symmetric heap failed: ", failure.what());
    return;
  }
  m_endpoint->free(block.pointer);
}

void tensor_pool::close() noexcept {
  const std::lock_guard lock(m_mutex);
  if (m_is_closed) return;
  m_is_closed = true;
  for (heap_block& block : m_blocks)
    if (block.is_free) release(block);
  m_host_endpoint->close();
}

}  // namespace isthmus::torch_backend
