// Backend p2p: collectives with kernels that store directly into peer memory. It has the lowest latency for the short
// messages of LLM decoding.
#include <isthmus/backend.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "backends/p2p/device.hpp"
#include "backends/p2p/peer_scratch.hpp"
#include "base/location.hpp"
#include "base/tables.hpp"

namespace isthmus::p2p {
namespace {

// An algorithm that a rule can name. `bfloat16_wire`: float32 buffers are sent as bfloat16.
struct named_algorithm {
  reduction_algorithm value;
  bool bfloat16_wire;
};
constexpr const char* algorithm_names[] = {"one_shot",      "two_shot",           "one_shot_bf16",
                                           "two_shot_bf16", "two_shot_zero_copy", nullptr};
// In the order of algorithm_names.
constexpr named_algorithm algorithm_rows[] = {{reduction_algorithm::one_shot, false},
                                              {reduction_algorithm::two_shot, false},
                                              {reduction_algorithm::one_shot, true},
                                              {reduction_algorithm::two_shot, true},
                                              {reduction_algorithm::two_shot_zero_copy, false}};
static_assert(std::size(algorithm_names) == std::size(algorithm_rows) + 1);

// Without a name: two_shot, which is exact and has no size limit.
const named_algorithm& algorithm_row(int index) {
  return algorithm_rows[index == ISTHMUS_ANY_ALGORITHM ? 1 : index];
}

struct p2p_state {
  const isthmus_backend_context* context;
  peer_scratch scratch;
  bool has_run_broadcast = false;  // never reset: a graph may replay the broadcast
  explicit p2p_state(const isthmus_backend_context* backend_context)
      : context(backend_context), scratch(*backend_context) {}
};

const char* unsupported_reduction_reason(const isthmus_operation& operation, const named_algorithm& algorithm) {
  const auto type = element_of(operation.datatype);
  if (!type) return "supports reductions of float32, float16 and bfloat16 only";
  if (operation.op != ISTHMUS_SUM && operation.op != ISTHMUS_AVG)
    return "supports reductions with sum and avg only";
  if (algorithm.bfloat16_wire && *type != element_type::float32)
    return "the bfloat16 wire requires float32 buffers";
  const element_type wire = algorithm.bfloat16_wire ? element_type::bfloat16 : *type;
  if (algorithm.value == reduction_algorithm::one_shot &&
      (operation.collective != ISTHMUS_ALLREDUCE ||
       operation.count > one_shot_limit_bytes / element_bytes(wire)))
    return "one_shot supports only allreduce of messages that fit the inbox (2 MiB on the wire)";
  return nullptr;
}

const char* supports(void*, const isthmus_operation* operation, int index) {
  const named_algorithm& algorithm = algorithm_row(index);
  if (algorithm.value == reduction_algorithm::two_shot_zero_copy)
    return "two_shot_zero_copy needs the buffers of all ranks; it is available through "
           "isthmus/tensor_parallel.h only";
  switch (operation->collective) {
    case ISTHMUS_ALLREDUCE:
    case ISTHMUS_REDUCE_SCATTER: return unsupported_reduction_reason(*operation, algorithm);
    case ISTHMUS_ALLGATHER:
    case ISTHMUS_BROADCAST:
      if (index != ISTHMUS_ANY_ALGORITHM)
        return "allgather and broadcast have only one algorithm; name the backend without an algorithm";
      return operation->count > packet_limit_bytes / bytes_of(operation->datatype)
                 ? "allgather and broadcast support at most 528 KiB per rank"
                 : nullptr;
    default: break;
  }
  return "supports allreduce, reduce_scatter, allgather and broadcast only";
}
static_assert(one_shot_limit_bytes == 132 * 16 * 1024 && packet_limit_bytes == 132 * 4096, "texts above");

kernel_arguments make_arguments(const p2p_state& state, const isthmus_operation& operation) {
  const isthmus_backend_context& context = *state.context;
  kernel_arguments args{};
  args.send_buf = operation.send_buf;
  args.recv_buf = operation.recv_buf;
  args.count = operation.count;
  args.rank = context.rank;
  args.size = context.size;
  args.root = operation.root;
  args.divisor = operation.op == ISTHMUS_AVG ? static_cast<float>(context.size) : 1.0f;
  state.scratch.fill_arguments(args);
  args.timeout_ns = static_cast<std::uint64_t>(context.timeout_s * 1e9);
  return args;
}

gpu_error launch(p2p_state& state, const isthmus_operation& operation, const named_algorithm& algorithm) {
  kernel_arguments args = make_arguments(state, operation);
  const auto stream = static_cast<gpu_stream>(operation.stream);
  if (operation.collective == ISTHMUS_ALLGATHER || operation.collective == ISTHMUS_BROADCAST) {
    args.count *= bytes_of(operation.datatype);
    state.has_run_broadcast |= operation.collective == ISTHMUS_BROADCAST;
    return operation.collective == ISTHMUS_ALLGATHER ? launch_allgather(args, stream)
                                                     : launch_broadcast(args, stream);
  }
  const element_type type = *element_of(operation.datatype);
  const element_type wire = algorithm.bfloat16_wire ? element_type::bfloat16 : type;
  return operation.collective == ISTHMUS_ALLREDUCE ? launch_allreduce(algorithm.value, type, wire, args, stream)
                                                   : launch_reduce_scatter(type, wire, args, stream);
}

isthmus_status create(const isthmus_backend_context* context, void** out) {
  *out = nullptr;
  auto* state = new (std::nothrow) p2p_state(context);
  if (!state)
    return context->fail(context->runtime, ISTHMUS_ERROR_OUT_OF_MEMORY, 0, ISTHMUS_HERE, nullptr,
                         "create: not enough host memory");
  if (!state->scratch.reason().empty()) {
    const auto status = context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, state->scratch.native_code(),
                                      ISTHMUS_HERE, nullptr, "%s", state->scratch.reason().c_str());
    delete state;
    return status;
  }
  *out = state;
  return ISTHMUS_SUCCESS;
}

// Maximum time for which destroy waits for ranks that have not yet started a broadcast that this
// rank has completed.
constexpr double drain_timeout_s = 1;

// In a broadcast, every rank sends to this one, and the data can arrive after this rank's kernel has ended. The
// memory must not be reused before then. If a rank never starts the broadcast, the scratch stays allocated.
void drain_broadcasts(p2p_state& self) {
  const isthmus_backend_context& context = *self.context;
  host_flags& flags = *self.scratch.flags();
  if (!self.has_run_broadcast || flags.abort != 0 || flags.expired != 0) return;
  const device_guard guard(context.device.ordinal);
  kernel_arguments args = make_arguments(self, {});
  args.timeout_ns = std::min(args.timeout_ns, static_cast<std::uint64_t>(drain_timeout_s * 1e9));
  gpu_error code = gpu_synchronize_device();  // this launch is not ordered after the streams of the broadcasts
  if (code == gpu_success) code = launch_drain(args, nullptr);
  if (code == gpu_success) code = gpu_synchronize_device();
  if (code != gpu_success || flags.expired == 0) return;
  const std::size_t abandoned_bytes = self.scratch.abandon_scratch();
  context.log(context.runtime, 2,
              "destroy: not every rank has started the last broadcast; %zu MB of device memory stay allocated "
              "because a rank may still write to them",
              abandoned_bytes / 1000000);
}

void destroy(void* opaque) {
  auto* const self = static_cast<p2p_state*>(opaque);
  drain_broadcasts(*self);
  delete self;
}

isthmus_status enqueue(void* opaque, const isthmus_operation* operations, const int* algorithms,
                       std::size_t n) {
  auto& self = *static_cast<p2p_state*>(opaque);
  const isthmus_backend_context& context = *self.context;
  const device_guard guard(context.device.ordinal);
  for (std::size_t i = 0; i < n; ++i) {
    if (operations[i].count == 0) continue;
    const gpu_error code = launch(self, operations[i], algorithm_row(algorithms[i]));
    if (code != gpu_success)
      return context.fail(context.runtime, ISTHMUS_ERROR_BACKEND, code, ISTHMUS_HERE,
                          "pass a stream of this communicator's device", "enqueue: kernel launch failed: %s",
                          gpu_error_text(code));
  }
  return ISTHMUS_SUCCESS;
}

isthmus_status poll(void* opaque) {
  auto& self = *static_cast<p2p_state*>(opaque);
  if (self.scratch.flags()->expired == 0) return ISTHMUS_SUCCESS;
  return self.context->fail(self.context->runtime, ISTHMUS_ERROR_TIMEOUT, 0, ISTHMUS_HERE,
                            "check that every rank calls the same collective with the same count",
                            "a kernel waited longer than %g s for another rank", self.context->timeout_s);
}

void abort(void* opaque) { static_cast<p2p_state*>(opaque)->scratch.flags()->abort = 1; }

isthmus_status synchronize(void* opaque) {
  auto& self = *static_cast<p2p_state*>(opaque);
  const device_guard guard(self.context->device.ordinal);
  const gpu_error code = gpu_synchronize_device();
  if (code != gpu_success)
    return self.context->fail(self.context->runtime, ISTHMUS_ERROR_BACKEND, code, ISTHMUS_HERE, nullptr,
                              "synchronize: the device failed: %s", gpu_error_text(code));
  return poll(opaque);
}

const isthmus_backend backend = {
    .struct_bytes = sizeof(isthmus_backend),
    .magic = ISTHMUS_BACKEND_MAGIC,
    .abi_version = ISTHMUS_BACKEND_ABI,
    .name = "p2p",
    .description = "kernels that store into peer memory (NVLink, xGMI, PCIe)",
    .capabilities = ISTHMUS_BACKEND_GRAPH_CAPTURE | ISTHMUS_BACKEND_RANK_ORDER,
    .platforms = 1u << ISTHMUS_P2P_PLATFORM,
    .create = create,
    .destroy = destroy,
    .supports = supports,
    .algorithms = algorithm_names,
    .enqueue = enqueue,
    .group_start = nullptr,
    .group_end = nullptr,
    .poll = poll,
    .abort = abort,
    .synchronize = synchronize,
    .version = nullptr,
    .split = nullptr,
    .discard_split_state = nullptr,
    .register_block = nullptr,
    .unregister_block = nullptr,
    .plan = nullptr,
};

}  // namespace
}  // namespace isthmus::p2p

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  return &isthmus::p2p::backend;
}
