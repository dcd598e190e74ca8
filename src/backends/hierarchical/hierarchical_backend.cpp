
#include <algorithm>
#include <memory>
#include <new>

#include "backends/hierarchical/collectives.hpp"
#include "backends/hierarchical/host_staging.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"

namespace isthmus {
namespace hierarchical {
namespace {

constexpr std::uint64_t default_chunk_bytes = 4 << 20;
constexpr std::uint64_t min_chunk_bytes = 64;

const char* const algorithm_names[] = {"sharded", "single_leader", nullptr};

shard_mode shard_mode_of(int algorithm) {
  return algorithm == 1 ? shard_mode::single_leader : shard_mode::sharded;
}

isthmus_status refuse(const isthmus_backend_context& context, isthmus_status status, const char* text,
                      const char* hint) {
  return context.fail(context.runtime, status, 0, ISTHMUS_HERE, hint, "%s", text);
}

// The state of one rank. It uses `hierarchy` if all ranks are on the host, and `host_path` if some rank
// has a device.
struct hierarchical_state {
  explicit hierarchical_state(const isthmus_backend_context& context) : hierarchy(context) {}
  node_hierarchy hierarchy;
  std::unique_ptr<host_staging> host_path;
};

isthmus_status initialize(const isthmus_backend_context& context, hierarchical_state& state) {
  node_hierarchy& hierarchy = state.hierarchy;
  host_staging::platforms platforms;
  if (const auto status = host_staging::detect_platforms(context, platforms)) return status;
  if (hierarchy.layout.nodes() == 1 && !platforms.is_mixed)
    return refuse(context, ISTHMUS_ERROR_UNSUPPORTED, "all ranks are on one node, and on one platform",
                  nullptr);
  if (const auto status = read_chunk_bytes(context, "hierarchical", default_chunk_bytes, min_chunk_bytes,
                                           hierarchy.chunk_bytes))
    return status;
  if (platforms.has_devices) {
    state.host_path = std::make_unique<host_staging>(context, shard_mode_of);
    return state.host_path->create(hierarchy.chunk_bytes);
  }
  if (context.is_chosen_by_default != 0 && hierarchy.layout.nodes() == context.size)
    return refuse(context, ISTHMUS_ERROR_UNSUPPORTED, "every rank is alone on its node", nullptr);
  hierarchy.overlaps = can_overlap(context);
  return hierarchy.comms.create(context, hierarchy.layout);
}

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  try {
    auto new_state = std::make_unique<hierarchical_state>(*context);
    if (const auto status = initialize(*context, *new_state)) return status;
    *state = new_state.release();
    return ISTHMUS_SUCCESS;
  } catch (const subcommunicator_failure& failure) {
    return report(*context, failure);
  } catch (const std::bad_alloc&) {
    return refuse(*context, ISTHMUS_ERROR_OUT_OF_MEMORY, "host memory exhausted", nullptr);
  }
}

hierarchical_state& state_of(void* state) { return *static_cast<hierarchical_state*>(state); }
node_hierarchy& hierarchy_of(void* state) { return state_of(state).hierarchy; }

// If no rank has the whole message, the message is not divided into shards, and both algorithms are equivalent.
const char* supports(void*, const isthmus_operation*, int) { return nullptr; }

void run_collective(node_hierarchy& hierarchy, const isthmus_operation& operation, int algorithm) {
  const collective_row& row = row_of(operation.collective);
  const shard_mode mode = shard_mode_of(algorithm);
  if (row.is_reduction) return run_reduction(hierarchy, operation, mode);
  if (is_sharded(row)) return run_broadcast(hierarchy, operation, mode);
  if (row.send_ranks == buffer_ranks::none) return run_barrier(hierarchy);
  if (row.send_extent == extent::count && row.recv_ranks == buffer_ranks::all)
    return run_allgather(hierarchy, operation);
  run_alltoall(hierarchy, operation);
}

isthmus_status enqueue(void* state, const isthmus_operation* operations, const int* algorithms, std::size_t n) {
  node_hierarchy& hierarchy = hierarchy_of(state);
  const isthmus_backend_context& context = *hierarchy.context;
  const auto is_message_operation = [](const isthmus_operation& each) {
    return is_point_to_point(each.collective);
  };
  try {
    if (state_of(state).host_path) {
      state_of(state).host_path->run(operations, algorithms, n);
      return ISTHMUS_SUCCESS;
    }
    // On all ranks, the messages of a group run before its collectives.
    if (std::any_of(operations, operations + n, is_message_operation)) run_messages(hierarchy, operations, n);
    for (std::size_t i = 0; i < n; ++i)
      if (!is_message_operation(operations[i])) run_collective(hierarchy, operations[i], algorithms[i]);
    return ISTHMUS_SUCCESS;
  } catch (const subcommunicator_failure& failure) {
    return report(context, failure);
  } catch (const error& failure) {
    const isthmus_error_info& info = failure.info();
    return context.fail(context.runtime, info.status, info.native_code, info.location, info.hint, "%s",
                        info.message);
  } catch (const std::bad_alloc&) {
    return refuse(context, ISTHMUS_ERROR_OUT_OF_MEMORY, "host memory exhausted", nullptr);
  }
}

const char* plan(void* state, const isthmus_operation* operation, int algorithm) {
  node_hierarchy& hierarchy = hierarchy_of(state);
  try {
    hierarchy.plan = state_of(state).host_path ? state_of(state).host_path->plan(*operation, algorithm)
                                               : plan_steps(hierarchy, *operation, shard_mode_of(algorithm));
    return hierarchy.plan.c_str();
  } catch (const std::exception& failure) {
    hierarchy.context->log(hierarchy.context->runtime, 1, "explain: no plan: %s", failure.what());
    return nullptr;
  }
}

}  // namespace
}  // namespace hierarchical

const isthmus_backend* hierarchical_backend() noexcept {
  static const isthmus_backend backend = [] {
    isthmus_backend functions{};
    functions.struct_bytes = sizeof functions;
    functions.magic = ISTHMUS_BACKEND_MAGIC;
    functions.abi_version = ISTHMUS_BACKEND_ABI;
    functions.name = "hierarchical";
    functions.description = "other backends composed: intra-node, inter-node, intra-node";
    functions.capabilities = ISTHMUS_BACKEND_BLOCKING | ISTHMUS_BACKEND_MULTI_NODE |
                             ISTHMUS_BACKEND_MIXED_PLATFORMS | ISTHMUS_BACKEND_LAST_RESORT;
    functions.platforms = 1u << ISTHMUS_PLATFORM_HOST | 1u << ISTHMUS_PLATFORM_CUDA |
                          1u << ISTHMUS_PLATFORM_HIP | 1u << ISTHMUS_PLATFORM_LEVEL_ZERO;
    functions.algorithms = hierarchical::algorithm_names;
    functions.create = hierarchical::create;
    functions.destroy = [](void* state) { delete static_cast<hierarchical::hierarchical_state*>(state); };
    functions.supports = hierarchical::supports;
    functions.enqueue = hierarchical::enqueue;
    functions.plan = hierarchical::plan;
    functions.abort = [](void* state) {
      hierarchical::hierarchy_of(state).comms.abort();
      if (hierarchical::state_of(state).host_path) hierarchical::state_of(state).host_path->abort();
    };
    return functions;
  }();
  return &backend;
}

}  // namespace isthmus
