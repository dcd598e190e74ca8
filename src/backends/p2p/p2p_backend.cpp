// Backend p2p: collectives with kernels that store directly into peer memory. It has the lowest latency for the short
// messages of LLM decoding.
//
// Float sums of allreduce and reduce_scatter, and of long reduces, use the inboxes (allreduce.cu). All other reductions
// (combine.cu) and the collectives that move data (exchange.cu) use the channels.
#include <isthmus/backend.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include "backends/p2p/channel_calls.hpp"
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

// Orders a group whose operations use several streams.
class stream_joint {
 public:
  stream_joint() = default;
  ~stream_joint() {
    if (m_event != nullptr) (void)gpu_event_destroy(m_event);
  }
  stream_joint(const stream_joint&) = delete;
  stream_joint& operator=(const stream_joint&) = delete;

  // The first stream waits for the others, or the others wait for the first one.
  gpu_error join(const std::vector<gpu_stream>& streams) { return order(streams, true); }
  gpu_error fork(const std::vector<gpu_stream>& streams) { return order(streams, false); }

 private:
  gpu_error order(const std::vector<gpu_stream>& streams, bool is_join) {
    gpu_error code = gpu_success;
    if (streams.size() > 1 && m_event == nullptr) code = gpu_event_create(&m_event);
    for (std::size_t i = 1; i < streams.size() && code == gpu_success; ++i) {
      code = gpu_event_record(m_event, is_join ? streams[i] : streams[0]);
      if (code == gpu_success) code = gpu_stream_wait(is_join ? streams[0] : streams[i], m_event, 0);
    }
    return code;
  }

  gpu_event m_event = nullptr;
};

struct p2p_state {
  const isthmus_backend_context* context;
  peer_scratch scratch;
  stream_joint joint;
  bool has_used_channels = false;  // never reset: a graph may replay the calls
  explicit p2p_state(const isthmus_backend_context* backend_context)
      : context(backend_context), scratch(*backend_context) {}
};

// The float sums for which allreduce.cu has kernels. one_shot of reduce uses the channels: only the root waits.
bool uses_float_kernels(const isthmus_operation& operation, const named_algorithm& algorithm) {
  const bool is_collective =
      (inbox_collectives >> operation.collective & 1) != 0 &&
      (operation.collective != ISTHMUS_REDUCE || algorithm.value == reduction_algorithm::two_shot);
  return is_collective && element_of(operation.datatype) &&
         (operation.op == ISTHMUS_SUM || operation.op == ISTHMUS_AVG);
}

const char* unsupported_reduction_reason(const isthmus_operation& operation, int index, int size) {
  if (index != ISTHMUS_ANY_ALGORITHM && operation.collective == ISTHMUS_REDUCE_SCATTERV)
    return "reduce_scatterv has only one algorithm; name the backend without an algorithm";
  const named_algorithm& algorithm = algorithm_row(index);
  const bool is_float_sum = uses_float_kernels(operation, algorithm);
  if (algorithm.value == reduction_algorithm::two_shot_zero_copy)
    return "two_shot_zero_copy needs the buffers of all ranks; it is available through "
           "isthmus/tensor_parallel.h only";
  if (operation.rmsnorm != nullptr && algorithm.bfloat16_wire)
    return "allreduce_rmsnorm sends contributions in their own type";
  if (operation.product != nullptr)
    return algorithm.bfloat16_wire ? "products are sent in their own type"
                                   : nullptr;  // one kernel, like one_shot
  if (!is_float_sum && size > combine_max_ranks)
    return "supports at most 8 ranks, except for sums of float32, float16 and bfloat16 in allreduce, "
           "reduce_scatter and reduce with two_shot";
  if (algorithm.bfloat16_wire && (!is_float_sum || operation.datatype != ISTHMUS_FLOAT32))
    return "the bfloat16 wire requires sums of float32";
  if (algorithm.value != reduction_algorithm::one_shot || operation.collective == ISTHMUS_REDUCE)
    return nullptr;
  const std::uint64_t wire_bytes = algorithm.bfloat16_wire ? 2 : bytes_of(operation.datatype);
  if (operation.collective != ISTHMUS_ALLREDUCE ||
      (operation.rmsnorm == nullptr && operation.count > one_shot_limit_bytes / wire_bytes))
    return "one_shot supports only reduce, and allreduce of messages that fit the inbox (2 MiB on the wire)";
  return nullptr;
}
static_assert(one_shot_limit_bytes == 132 * 16 * 1024 && combine_max_ranks == 8, "texts above");

const char* supports(void* opaque, const isthmus_operation* operation, int index) {
  if (operation->product != nullptr && !static_cast<const p2p_state*>(opaque)->scratch.can_multiply())
    return "a device has too little shared memory for the kernels of products, or no instructions for them";
  if (row_of(operation->collective).is_reduction)
    return unsupported_reduction_reason(*operation, index,
                                        static_cast<const p2p_state*>(opaque)->context->size);
  return index == ISTHMUS_ANY_ALGORITHM
             ? nullptr
             : "only reductions have several algorithms; name the backend without an algorithm";
}

// Fills in the arguments that do not depend on the operation.
template <typename Arguments>
Arguments make_arguments(const p2p_state& state) {
  const isthmus_backend_context& context = *state.context;
  Arguments args{};
  args.rank = context.rank;
  args.size = context.size;
  state.scratch.fill_arguments(args);
  args.timeout_ns = static_cast<std::uint64_t>(context.timeout_s * 1e9);
  return args;
}
channel_rank make_channel_rank(const p2p_state& state) {
  return {make_arguments<channel_arguments>(state), state.scratch.limits()};
}

gpu_error launch_float_sum(const p2p_state& state, const isthmus_operation& operation,
                           const named_algorithm& algorithm, gpu_stream stream) {
  auto args = make_arguments<kernel_arguments>(state);
  args.send_buf = operation.send_buf;
  const bool has_result = operation.collective != ISTHMUS_REDUCE || operation.root == args.rank;
  args.recv_buf = has_result ? operation.recv_buf : nullptr;
  args.count = operation.count;
  args.divisor = operation.op == ISTHMUS_AVG ? static_cast<float>(args.size) : 1.0f;
  const element_type type = *element_of(operation.datatype);
  const element_type wire = algorithm.bfloat16_wire ? element_type::bfloat16 : type;
  return operation.collective == ISTHMUS_REDUCE_SCATTER
             ? launch_reduce_scatter(type, wire, args, stream)
             : launch_allreduce(algorithm.value, type, wire, args, stream);
}

gpu_error launch_rmsnorm(const p2p_state& state, const isthmus_operation& operation,
                         const named_algorithm& algorithm, gpu_stream stream) {
  const isthmus_rmsnorm& norm = *operation.rmsnorm;
  auto args = make_arguments<rmsnorm_arguments>(state);
  args.send_buf = operation.send_buf;
  args.recv_buf = operation.recv_buf;
  args.count = operation.count;
  args.divisor = 1.0f;
  args.tokens = operation.count / norm.hidden;
  args.hidden = static_cast<std::uint32_t>(norm.hidden);
  args.residual = norm.residual;
  args.weight = norm.weight;
  args.normalized = norm.normalized;
  args.is_quantized = norm.output != operation.datatype;
  args.scale = norm.scale;
  args.scales = norm.scales;
  args.eps = norm.eps;
  args.round_before_weight = norm.round_before_weight != 0;
  args.multiprocessors = state.scratch.multiprocessors();
  return launch_allreduce_rmsnorm(algorithm.value, *element_of(operation.datatype), args, stream);
}

gpu_error launch_product(const p2p_state& state, const isthmus_operation& operation, gpu_stream stream) {
  const isthmus_product& product = *operation.product;
  if (operation.count == 0) return gpu_success;
  auto args = make_arguments<product_arguments>(state);
  args.recv_buf = operation.recv_buf;
  args.count = operation.count;
  args.divisor = 1.0f;
  args.rows = static_cast<std::uint32_t>(product.rows);
  args.columns = static_cast<std::uint32_t>(product.columns);
  args.inner = static_cast<std::uint32_t>(product.inner);
  args.a = product.a;
  args.b = product.b;
  args.lda = product.lda;
  args.ldb = product.ldb;
  args.bias = product.bias;
  args.alpha = product.alpha;
  args.multiprocessors = state.scratch.multiprocessors();
  return launch_matmul_allreduce(*element_of(operation.datatype), args, stream);
}

gpu_error launch(p2p_state& state, const isthmus_operation& operation, const named_algorithm& algorithm) {
  const auto stream = static_cast<gpu_stream>(operation.stream);
  if (operation.rmsnorm != nullptr) return launch_rmsnorm(state, operation, algorithm, stream);
  if (operation.product != nullptr) return launch_product(state, operation, stream);
  if (uses_float_kernels(operation, algorithm))
    return operation.count == 0 ? gpu_success : launch_float_sum(state, operation, algorithm, stream);
  state.has_used_channels = state.context->size > 1;
  return launch_channel_call(make_channel_rank(state), operation,
                             algorithm.value == reduction_algorithm::two_shot, stream);
}

isthmus_status fail_launch(const isthmus_backend_context& context, gpu_error code) {
  return context.fail(context.runtime, ISTHMUS_ERROR_BACKEND, code, ISTHMUS_HERE,
                      "pass a stream of this communicator's device", "enqueue: kernel launch failed: %s",
                      gpu_error_text(code));
}

// Runs all sends and receives of a group, after its collectives, as in NCCL. If they use several streams, they run on the
// first one, after earlier work of the others, and the others wait for them.
isthmus_status run_messages(p2p_state& state, const isthmus_operation* operations, std::size_t n) {
  if (std::none_of(operations, operations + n,
                   [](const isthmus_operation& each) { return is_point_to_point(each.collective); }))
    return ISTHMUS_SUCCESS;
  const isthmus_backend_context& context = *state.context;
  const channel_rank self{make_arguments<channel_arguments>(state), state.scratch.message_limits()};
  message_rounds messages(self);
  std::vector<gpu_stream> streams;
  for (std::size_t i = 0; i < n; ++i) {
    if (!is_point_to_point(operations[i].collective)) continue;
    messages.add(operations[i]);
    const auto stream = static_cast<gpu_stream>(operations[i].stream);
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  }
  if (messages.is_empty()) return ISTHMUS_SUCCESS;
  if (!messages.are_self_messages_matched())
    return context.fail(context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE,
                        "post a self-send and the matching recv of equal length in one group",
                        "send/recv: rank %d exchanges with itself, but the group has no matching operation",
                        context.rank);
  state.has_used_channels = context.size > 1;
  gpu_error code = state.joint.join(streams);
  if (code == gpu_success) code = messages.launch(streams.front());
  if (code == gpu_success) code = state.joint.fork(streams);
  return code == gpu_success ? ISTHMUS_SUCCESS : fail_launch(context, code);
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
#ifdef ISTHMUS_P2P_UNOPTIMIZED
  if (context->rank == 0)
    context->log(context->runtime, 2,
                 "create: the kernels are not optimized, because the machine that built them has no device; "
                 "build Isthmus on this machine");
#endif
  *out = state;
  return ISTHMUS_SUCCESS;
}

// Maximum time for which destroy waits for ranks that have not yet received what this rank has sent.
constexpr double drain_timeout_s = 1;

// Receivers acknowledge what they have read, and this can happen after this rank's kernel has ended. The memory must not
// be reused before then. If a rank never receives a message, the scratch stays allocated.
void drain_channels(p2p_state& self) {
  const isthmus_backend_context& context = *self.context;
  host_flags& flags = *self.scratch.flags();
  if (!self.has_used_channels || flags.abort != 0 || flags.expired != 0) return;
  const device_guard guard(context.device.ordinal);
  auto args = make_arguments<channel_arguments>(self);
  args.timeout_ns = std::min(args.timeout_ns, static_cast<std::uint64_t>(drain_timeout_s * 1e9));
  gpu_error code = gpu_synchronize_device();  // this launch is not ordered after the streams of the calls
  if (code == gpu_success) code = launch_drain(args, nullptr);
  if (code == gpu_success) code = gpu_synchronize_device();
  if (code != gpu_success || flags.expired == 0) return;
  const std::size_t abandoned_bytes = self.scratch.abandon_scratch();
  context.log(
      context.runtime, 2,
      "destroy: not every rank has received what this rank sent; %zu MB of device memory stay allocated "
      "because a rank may still write to them",
      abandoned_bytes / 1000000);
}

void destroy(void* opaque) {
  auto* const self = static_cast<p2p_state*>(opaque);
  drain_channels(*self);
  delete self;
}

isthmus_status enqueue(void* opaque, const isthmus_operation* operations, const int* algorithms,
                       std::size_t n) {
  auto& self = *static_cast<p2p_state*>(opaque);
  const isthmus_backend_context& context = *self.context;
  const device_guard guard(context.device.ordinal);
  for (std::size_t i = 0; i < n; ++i) {
    if (is_point_to_point(operations[i].collective)) continue;
    const gpu_error code = launch(self, operations[i], algorithm_row(algorithms[i]));
    if (code != gpu_success) return fail_launch(context, code);
  }
  return run_messages(self, operations, n);
}

isthmus_status poll(void* opaque) {
  auto& self = *static_cast<p2p_state*>(opaque);
  const host_flags& flags = *self.scratch.flags();
  if (flags.expired == 0) return ISTHMUS_SUCCESS;
  const int awaited = static_cast<int>(flags.awaited) - 1;
  const std::string peer = awaited < 0 ? "another rank" : "rank " + std::to_string(awaited);
  return self.context->fail(self.context->runtime, ISTHMUS_ERROR_TIMEOUT, 0, ISTHMUS_HERE,
                            "check that every rank calls the same collective with the same count",
                            "a kernel waited longer than %g s for %s", self.context->timeout_s, peer.c_str());
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
    .capabilities = ISTHMUS_BACKEND_GRAPH_CAPTURE | ISTHMUS_BACKEND_RANK_ORDER | ISTHMUS_BACKEND_RMSNORM |
                    ISTHMUS_BACKEND_PRODUCT | ISTHMUS_BACKEND_BUFFERED_SENDS,
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
