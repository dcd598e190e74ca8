// A stand-in for an inter-node backend: the shm backend with a context in which all ranks are on one node. It
// counts the data that it gets.
#include "wire.h"

#include <memory>
#include <utility>
#include <vector>

#include "backends/shm/algorithms.hpp"
#include "base/block_map.hpp"

namespace {

using namespace isthmus;

wire_statistics statistics{};

struct wire_state {
  isthmus_backend_context context;
  std::vector<int> one_node;
  void* host = nullptr;
};

isthmus_status create(const isthmus_backend_context* parent, void** state) {
  auto new_state = std::make_unique<wire_state>();
  new_state->context = *parent;
  new_state->one_node.assign(static_cast<std::size_t>(parent->size), 0);
  new_state->context.node_of = new_state->one_node.data();
  new_state->context.node_rank = parent->rank;
  new_state->context.node_size = parent->size;
  const isthmus_status status = shm_backend()->create(&new_state->context, &new_state->host);
  if (status == ISTHMUS_SUCCESS) *state = new_state.release();
  return status;
}

void count(const isthmus_operation& operation, const wire_state& self) {
  const isthmus_backend_context& context = self.context;
  const block_map blocks(operation, context.rank, context.size);
  ++statistics.calls;
  statistics.ranks = context.size;
  if (row_of(operation.collective).is_reduction) {
    statistics.summed_bytes += blocks.send_bytes();
    return;
  }
  for (int peer = 0; peer < context.size; ++peer)
    if (peer != context.rank) statistics.moved_bytes += blocks.outgoing_block(peer).bytes;
}

isthmus_status enqueue(void* state, const isthmus_operation* operations, const int*, std::size_t n) {
  auto& self = *static_cast<wire_state*>(state);
  for (std::size_t i = 0; i < n; ++i) count(operations[i], self);
  const std::vector<int> algorithms(n, ISTHMUS_ANY_ALGORITHM);
  return shm_backend()->enqueue(self.host, operations, algorithms.data(), n);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) wire_statistics wire_take_statistics(void) {
  return std::exchange(statistics, wire_statistics{});
}

extern "C" ISTHMUS_BACKEND_EXPORT const isthmus_backend* isthmus_backend_v1(void) {
  static const isthmus_backend backend = [] {
    isthmus_backend functions{};
    functions.struct_bytes = sizeof functions;
    functions.magic = ISTHMUS_BACKEND_MAGIC;
    functions.abi_version = ISTHMUS_BACKEND_ABI;
    functions.name = "wire";
    functions.description = "a stand-in for an inter-node backend";
    functions.capabilities = ISTHMUS_BACKEND_BLOCKING | ISTHMUS_BACKEND_MULTI_NODE;
    functions.platforms = 1u << ISTHMUS_PLATFORM_HOST;
    functions.create = create;
    functions.destroy = [](void* state) {
      const std::unique_ptr<wire_state> self(static_cast<wire_state*>(state));
      shm_backend()->destroy(self->host);
    };
    functions.supports = [](void*, const isthmus_operation*, int) -> const char* { return nullptr; };
    functions.enqueue = enqueue;
    functions.abort = [](void* state) { shm_backend()->abort(static_cast<wire_state*>(state)->host); };
    return functions;
  }();
  return &backend;
}
