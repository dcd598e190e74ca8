// Tensors in the symmetric heap, at the same place on every rank: what allocate_tensor of a process group
// gives.
//
// The ranks agree on every allocation, through host memory (microseconds, if they are in step), because a rank
// alone cannot know which blocks the others have freed. Blocks serve again and are not returned to the device
// before the group is shut down.
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
  // `control` has the heap, `ballot` are the same ranks on the host.
  tensor_pool(std::shared_ptr<device_endpoint> endpoint, std::shared_ptr<device_endpoint> host_endpoint)
      : m_endpoint(std::move(endpoint)), m_host_endpoint(std::move(host_endpoint)) {}
  tensor_pool(const tensor_pool&) = delete;
  tensor_pool& operator=(const tensor_pool&) = delete;

  // Collective; contents are undefined. The memory may be used on `streams` until the tensor is gone, and is
  // handed out again behind what they hold then; other streams have to be waited for. The first stream is the
  // one that allocates.
  at::Tensor allocate(int64_t elements, const at::TensorOptions& options, std::vector<c10::Stream> streams);

  // Ends waits in allocate. Any thread.
  void abort() noexcept { m_host_endpoint->abort(); }
  // Frees what no tensor uses; the last tensor frees the rest.
  void close() noexcept;

 private:
  struct heap_block {
    void* pointer;
    std::uint64_t bytes;
    bool is_free;
    std::vector<c10::Stream> streams;  // of the tensor that uses it
    std::vector<c10::Event> last_uses;
  };

  heap_block& acquire(std::uint64_t bytes);
  heap_block* find_common_block(std::uint64_t bytes);
  void recycle(heap_block& block) noexcept;
  void release(heap_block& block) noexcept;

  const std::shared_ptr<device_endpoint> m_endpoint, m_host_endpoint;
  std::mutex m_allocation_mutex;          // one allocation at a time
  std::mutex m_mutex;               // of what follows
  std::deque<heap_block> m_blocks;  // in the order of their allocation, which is the same on all ranks
  bool m_is_closed = false;
};

}  // namespace isthmus::torch_backend
