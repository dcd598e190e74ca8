// Tensors in the symmetric heap, at the same heap offset on every rank. Implements allocate_tensor of
// a process group.
//
// The ranks agree on every allocation, because a rank does not know which blocks the others have freed. The
// agreement uses host memory and takes microseconds if the ranks arrive together. Blocks are reused and are
// returned to the device only when the group is shut down.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device_endpoint.hpp"

namespace isthmus::torch_backend {

class tensor_pool : public std::enable_shared_from_this<tensor_pool> {
 public:
  // `endpoint` owns the heap. `host_endpoint` connects the same ranks on the host.
  tensor_pool(std::shared_ptr<device_endpoint> endpoint, std::shared_ptr<device_endpoint> host_endpoint)
      : m_endpoint(std::move(endpoint)), m_host_endpoint(std::move(host_endpoint)) {}
  tensor_pool(const tensor_pool&) = delete;
  tensor_pool& operator=(const tensor_pool&) = delete;

  // Allocates a tensor with undefined contents. Collective.
  // Ordering: the first stream is the allocating stream. The memory can be used on `streams` without
  // synchronization; it is reused only after the work that is pending on these streams when the tensor is
  // released. The caller must wait for work on other streams.
  at::Tensor allocate(int64_t elements, const at::TensorOptions& options, std::vector<c10::Stream> streams);

  // Ends waits in allocate(). May be called from any thread.
  void abort() noexcept { m_host_endpoint->abort(); }
  // Frees the unused blocks. Blocks in use are freed together with their tensors.
  void close() noexcept;

 private:
  struct heap_block {
    void* pointer;
    std::uint64_t bytes;
    bool is_free;
    std::vector<c10::Stream> streams;  // streams of the tensor that uses the block
    std::vector<c10::Event> last_uses;
  };

  heap_block& acquire(std::uint64_t bytes);
  heap_block* find_common_block(std::uint64_t bytes);
  void recycle(heap_block& block) noexcept;
  void release(heap_block& block) noexcept;

  const std::shared_ptr<device_endpoint> m_endpoint, m_host_endpoint;
  std::mutex m_allocation_mutex;    // one allocation at a time
  std::mutex m_mutex;               // guards the following members
  std::deque<heap_block> m_blocks;  // in allocation order, which is the same on all ranks
  bool m_is_closed = false;
};

}  // namespace isthmus::torch_backend
