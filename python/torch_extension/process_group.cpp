#include "process_group.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/utils/pybind.h>

#include "monitored_barrier.hpp"
#include "plans.hpp"
#include "status.hpp"

namespace isthmus::torch_backend {
namespace {

const at::Tensor& only(const char* call, const tensors& list) {
  TORCH_CHECK_VALUE(list.size() == 1, call, ": ", list.size(), " tensors; a process drives one, on one device");
  return list.front();
}

const tensors& only(const char* call, const tensor_lists& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, call, ": ", lists.size(), " lists of tensors; a process has one");
  return lists.front();
}

const tensors& none_or_only(const char* call, const tensor_lists& lists) {
  static const tensors none;
  return lists.empty() ? none : only(call, lists);
}

// The factor of PREMUL_SUM; undefined for every other reduction.
at::Tensor factor_of(const c10d::ReduceOp& op, at::ScalarType type) {
  if (op != c10d::ReduceOp::PREMUL_SUM) return {};
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "PREMUL_SUM has no factor: make it with _make_nccl_premul_sum");
  if (factor->tensor_factor.defined()) return factor->tensor_factor;
  return at::scalar_tensor(factor->double_factor, at::TensorOptions().dtype(type));
}

std::string name_of(c10::Device device) { return device.is_cpu() ? "cpu" : device.str(); }

}  // namespace

process_group::process_group(store_ptr store, int rank, int size, settings chosen)
    : Backend(rank, size),
      m_store(std::move(store)),
      m_settings(std::move(chosen)),
      m_options(c10::make_intrusive<Options>("isthmus", m_settings.timeout)) {
  m_options->group_name = m_settings.name;
  init();
}

// Without the interpreter's lock: threads that end here may be in callbacks of futures that wait for it.
process_group::~process_group() {
  std::optional<pybind11::gil_scoped_release> unlocked;
  if (Py_IsInitialized() && PyGILState_Check()) unlocked.emplace();
  for (const auto& [key, made] : m_made.pools) made->close();  // tensors may outlive the group
  m_made.lanes.clear();
  m_fallbacks.clear();
}

c10::intrusive_ptr<c10d::Backend::Options> process_group::getBackendOptions() { return m_options; }

void process_group::setTimeout(milliseconds timeout) {
  const std::lock_guard lock(m_mutex);
  m_settings.timeout = timeout;  // of lanes that are not made yet
  m_options->timeout = timeout;
}

// ---- lanes --------------------------------------------------------------------------------------------

// "cuda" without an index is the current device.
c10::Device process_group::resolve(c10::Device device) const {
  if (device.is_cpu()) return c10::Device(c10::kCPU);
  TORCH_CHECK_VALUE(device.is_cuda(), "isthmus: tensors on ", device.str(),
                    " are not supported: cpu and cuda are");
  if (device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

std::shared_ptr<lane> process_group::lane_of(c10::Device device, const channel& way) {
  const std::lock_guard lock(m_mutex);
  check_open();
  const lane_key key{device.type(), device.index(), way};
  const auto known = m_made.lanes.find(key);
  if (known != m_made.lanes.end()) return known->second;
  return m_made.lanes.emplace(key, make_lane(device, way)).first->second;
}

void process_group::check_open() const {
  if (m_closed)
    C10_THROW_ERROR(DistBackendError, c10::str("isthmus: process group ", m_settings.name, " was shut down"));
}

std::unique_ptr<lane> process_group::make_lane(c10::Device device, const channel& way) const {
  const bool message = way.source >= 0;
  place where = place_on(device);
  if (message) {
    where.rank = way.source == getRank() ? 0 : 1;
    where.size = 2;
    where.collectives = 1u << ISTHMUS_SEND | 1u << ISTHMUS_RECV;
    where.scope += c10::str("_", way.source, "_", way.destination, "_", way.tag);
  }
  auto meeting = std::make_shared<endpoint>(m_store, std::move(where));
  if (device.is_cpu()) return std::make_unique<host_lane>(std::move(meeting), m_settings.timeout);
  return std::make_unique<device_lane>(std::move(meeting), m_settings.timeout, device);
}

// All ranks of the group, on `device`.
place process_group::place_on(c10::Device device) const {
  place where;
  where.rank = getRank();
  where.size = getSize();
  where.device = device.is_cpu() ? isthmus_device{ISTHMUS_PLATFORM_HOST, 0}
                                 : isthmus_device{m_settings.accelerator, device.index()};
  where.timeout_s = static_cast<double>(m_settings.timeout.count()) / 1e3;
  where.scope = device.is_cpu() ? "isthmus_cpu" : "isthmus_cuda";
  if (m_generation > 0)
    where.scope += c10::str("_", m_generation);  // the store still has the keys of those before
  where.group = m_settings.name;
  where.device_name = name_of(device);
  return where;
}

std::shared_ptr<pool> process_group::pool_of(c10::Device device) {
  const std::shared_ptr<endpoint> heap = lane_of(device)->place();
  const std::lock_guard lock(m_mutex);
  check_open();
  auto& made = m_made.pools[{device.type(), device.index()}];
  if (!made) {
    place voters = place_on(c10::kCPU);
    voters.scope = heap->where().scope + "_pool";
    voters.group += " (memory pool)";
    made = std::make_shared<pool>(heap, std::make_shared<endpoint>(m_store, std::move(voters)));
  }
  return made;
}

at::Tensor process_group::allocateTensor(long elements, at::TensorOptions options) {
  TORCH_CHECK_VALUE(elements >= 0, "isthmus: allocate_tensor: size is ", elements, ": it must be >= 0");
  const c10::Device device = resolve(options.device());
  return pool_of(device)->allocate(elements, options.device(device), lane_of(device)->streams());
}

isthmus_communicator process_group::communicator(c10::Device device) {
  return lane_of(resolve(device))->place()->open();
}

work_ptr process_group::submit(c10::Device device, const terms& how, c10::function_ref<plan()> build) {
  ++m_sequence;
  const std::shared_ptr<lane> where = lane_of(resolve(device));
  coalesced* const together = coalescing();
  plan planned = where->prepare(how.asynchronous || together != nullptr, build);
  if (how.timeout != c10d::kUnsetTimeout) planned.timeout = how.timeout;
  if (together == nullptr) return where->run(std::move(planned));
  together->plans[{device.type(), resolve(device).index()}].append(std::move(planned));
  return nullptr;
}

// ---- coalescing ---------------------------------------------------------------------------------------

process_group::coalesced* process_group::coalescing() {
  const std::lock_guard lock(m_mutex);
  return m_coalesced && m_coalesced->owner == std::this_thread::get_id() ? m_coalesced.get() : nullptr;
}

void process_group::startCoalescing() {
  const std::lock_guard lock(m_mutex);
  TORCH_CHECK(!m_coalesced, "isthmus: process group ", m_settings.name, " is coalescing already");
  m_coalesced = std::make_unique<coalesced>();
  m_coalesced->owner = std::this_thread::get_id();
}

work_ptr process_group::endCoalescing() {
  TORCH_CHECK(coalescing() != nullptr, "isthmus: endCoalescing without startCoalescing in this thread");
  std::unique_ptr<coalesced> together;
  {
    const std::lock_guard lock(m_mutex);
    together = std::move(m_coalesced);
  }
  for (auto& [device, all] : together->plans) {
    all.kind = c10d::OpType::COALESCED;
    all.title = "isthmus:coalesced";
    together->works.push_back(lane_of(c10::Device(device.first, device.second))->run(std::move(all)));
  }
  if (together->works.size() == 1) return together->works.front();
  return c10::make_intrusive<joined_work>(getRank(), std::move(together->works));
}

// ---- collectives --------------------------------------------------------------------------------------

work_ptr process_group::broadcast(tensors& data, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only("broadcast", data);
  return submit(tensor.device(), terms_of(options),
                [&] { return plans::broadcast(tensor, static_cast<int>(options.rootRank)); });
}

work_ptr process_group::allreduce(tensors& data, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", data);
  if (tensor.is_sparse()) return allreduce_sparse(data, options);
  return reducing(
      "allreduce", tensor, options.reduceOp, terms_of(options),
      [&](const plans::combination& by) { return plans::allreduce(tensor, by); },
      [&](c10d::Backend& other) { return other.allreduce(data, options); });
}

work_ptr process_group::allreduce_coalesced(tensors& data, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!data.empty(), "all_reduce_coalesced: no tensors");
  return reducing(
      "allreduce", data.front(), options.reduceOp, terms_of(options),
      [&](const plans::combination& by) {
        plan all = plans::allreduce(data.front(), by);
        for (std::size_t index = 1; index < data.size(); ++index) {
          TORCH_CHECK_VALUE(data[index].scalar_type() == data.front().scalar_type(),
                            "all_reduce_coalesced: all tensors must have one dtype");
          all.append(plans::allreduce(data[index], by));
        }
        return all;
      },
      [&](c10d::Backend& other) { return other.allreduce_coalesced(data, options); });
}

work_ptr process_group::allreduce_sparse(tensors& data, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", data);
  auto& other = fallback(tensor.device(), "allreduce", "Isthmus has no sparse reduction", tensor);
  // gloo takes sparse tensors by its ordinary call
  return tensor.is_cpu() ? other.allreduce(data, options) : other.allreduce_sparse(data, options);
}

work_ptr process_group::reduce(tensors& data, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only("reduce", data);
  return reducing(
      "reduce", tensor, options.reduceOp, terms_of(options),
      [&](const plans::combination& by) {
        return plans::reduce(tensor, static_cast<int>(options.rootRank), by);
      },
      [&](c10d::Backend& other) { return other.reduce(data, options); });
}

work_ptr process_group::allgather(tensor_lists& outputs, tensors& inputs,
                                  const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only("all_gather", inputs);
  return submit(input.device(), terms_of(options),
                [&] { return plans::allgather(self(), only("all_gather", outputs), input); });
}

work_ptr process_group::_allgather_base(at::Tensor& output, at::Tensor& input,
                                        const c10d::AllgatherOptions& options) {
  return submit(input.device(), terms_of(options),
                [&] { return plans::allgather_base(self(), output, input); });
}

work_ptr process_group::allgather_coalesced(tensor_lists& outputs, tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(), "all_gather_coalesced: no tensors");
  return submit(inputs.front().device(), terms_of(options), [&] {
    plan all;
    for (std::size_t index = 0; index < inputs.size(); ++index) {
      tensors of_ranks;
      for (const tensors& of_rank : outputs) of_ranks.push_back(of_rank.at(index));
      all.append(plans::allgather(self(), of_ranks, inputs[index]));
    }
    all.kind = c10d::OpType::ALLGATHER_COALESCED;
    all.title = "isthmus:all_gather_coalesced";
    return all;
  });
}

work_ptr process_group::allgather_into_tensor_coalesced(tensors& outputs, tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(),
                    "all_gather_into_tensor_coalesced: ", outputs.size(), " outputs for ", inputs.size(),
                    " inputs");
  return submit(inputs.front().device(), terms_of(options), [&] {
    plan all = plans::allgather_base(self(), outputs.front(), inputs.front());
    for (std::size_t index = 1; index < inputs.size(); ++index)
      all.append(plans::allgather_base(self(), outputs[index], inputs[index]));
    return all;
  });
}

work_ptr process_group::gather(tensor_lists& outputs, tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor& input = only("gather", inputs);
  return submit(input.device(), terms_of(options), [&] {
    return plans::gather(self(), none_or_only("gather", outputs), input, static_cast<int>(options.rootRank));
  });
}

work_ptr process_group::scatter(tensors& outputs, tensor_lists& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor& output = only("scatter", outputs);
  return submit(output.device(), terms_of(options), [&] {
    return plans::scatter(self(), output, none_or_only("scatter", inputs), static_cast<int>(options.rootRank));
  });
}

work_ptr process_group::reduce_scatter(tensors& outputs, tensor_lists& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only("reduce_scatter", outputs);
  return reducing(
      "reduce_scatter", output, options.reduceOp, terms_of(options),
      [&](const plans::combination& by) {
        return plans::reduce_scatter(self(), output, only("reduce_scatter", inputs), by);
      },
      [&](c10d::Backend& other) { return other.reduce_scatter(outputs, inputs, options); });
}

work_ptr process_group::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) {
  return reducing(
      "reduce_scatter", output, options.reduceOp, terms_of(options),
      [&](const plans::combination& by) { return plans::reduce_scatter_base(self(), output, input, by); },
      [&](c10d::Backend& other) { return other._reduce_scatter_base(output, input, options); });
}

work_ptr process_group::reduce_scatter_tensor_coalesced(tensors& outputs, tensors& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(),
                    "reduce_scatter_tensor_coalesced: ", outputs.size(), " outputs for ", inputs.size(),
                    " inputs");
  return reducing(
      "reduce_scatter", outputs.front(), options.reduceOp, terms_of(options),
      [&](const plans::combination& by) {
        plan all = plans::reduce_scatter_base(self(), outputs.front(), inputs.front(), by);
        for (std::size_t index = 1; index < inputs.size(); ++index) {
          TORCH_CHECK_VALUE(inputs[index].scalar_type() == inputs.front().scalar_type(),
                            "reduce_scatter_tensor_coalesced: all tensors must have one dtype");
          all.append(plans::reduce_scatter_base(self(), outputs[index], inputs[index], by));
        }
        return all;
      },
      [&](c10d::Backend& other) { return other.reduce_scatter_tensor_coalesced(outputs, inputs, options); });
}

work_ptr process_group::alltoall_base(at::Tensor& output, at::Tensor& input, splits& output_splits,
                                      splits& input_splits, const c10d::AllToAllOptions& options) {
  return submit(input.device(), terms_of(options),
                [&] { return plans::alltoall_base(self(), output, input, output_splits, input_splits); });
}

work_ptr process_group::alltoall(tensors& outputs, tensors& inputs, const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(), "all_to_all: the list of inputs is empty");
  return submit(inputs.front().device(), terms_of(options),
                [&] { return plans::alltoall(self(), outputs, inputs); });
}

// ---- reductions: composed, or PyTorch's own -------------------------------------------------------------

work_ptr process_group::reducing(const char* collective, const at::Tensor& sample, const c10d::ReduceOp& op,
                                 const terms& how, c10::function_ref<plan(const plans::combination&)> build,
                                 c10::function_ref<work_ptr(c10d::Backend&)> otherwise) {
  const char* reason = "";
  if (const auto image = reduced_as(sample.scalar_type(), op, reason)) {
    const plans::combination by{*image, factor_of(op, sample.scalar_type())};
    return submit(sample.device(), how, [&] { return build(by); });
  }
  const work_ptr work = otherwise(fallback(sample.device(), collective, reason, sample));
  coalesced* const together = coalescing();
  if (together == nullptr) return work;
  together->works.push_back(work);
  return nullptr;
}

c10d::Backend& process_group::fallback(c10::Device device, const char* collective, const std::string& reason,
                                       const at::Tensor& data) {
  const std::lock_guard lock(m_mutex);
  auto& other = m_fallbacks[device.type()];
  if (!other) {
    other = m_settings.make_fallback(c10::make_intrusive<c10d::PrefixStore>("isthmus_fallback", m_store),
                                     device.type());
    TORCH_WARN("isthmus: ", collective, " of ", data.scalar_type(), " goes to PyTorch's ",
               other->getBackendName(), ": ", reason,
               " (said once for each group; isthmus.torch.report() counts them all)");
  }
  const path taken{m_settings.name, name_of(resolve(device)), collective, "torch:" + other->getBackendName(),
                   reason};
  path_report::instance().of(taken).add(data.is_sparse() ? 0 : data.nbytes());
  return *other;
}

// ---- messages -----------------------------------------------------------------------------------------

// On the host each peer, direction and tag has a communicator of its own, so that messages neither wait for
// collectives nor for messages of another tag. On a device coalesced messages start together on the group's
// communicator, as batch_isend_irecv asks; others have a communicator for each peer and direction.
work_ptr process_group::message(at::Tensor data, isthmus_collective collective, const channel& way, int peer) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < getSize() && peer != getRank(),
                    "isthmus: the peer of send and recv is ", peer, ": it must be another rank of the group's ",
                    getSize());
  const c10::Device device = resolve(data.device());
  coalesced* const together = coalescing();
  if (together != nullptr && !device.is_cpu())
    return submit(device, {}, [&] { return plans::message(data, collective, peer); });
  channel own = way;
  if (!device.is_cpu()) own.tag = 0;
  const std::shared_ptr<lane> where = lane_of(device, own);
  const int other = collective == ISTHMUS_SEND ? 1 : 0;  // the sender is rank 0 of the two
  work_ptr work = where->run(where->prepare(true, [&] { return plans::message(data, collective, other); }));
  if (together == nullptr) return work;
  together->works.push_back(std::move(work));
  return nullptr;
}

work_ptr process_group::send(tensors& data, int peer, int tag) {
  return message(only("send", data), ISTHMUS_SEND, {getRank(), peer, tag}, peer);
}

work_ptr process_group::recv(tensors& data, int peer, int tag) {
  return message(only("recv", data), ISTHMUS_RECV, {peer, getRank(), tag}, peer);
}

work_ptr process_group::recvAnysource(tensors& /*data*/, int /*tag*/) {
  C10_THROW_ERROR(NotImplementedError,
                  "isthmus: recv from any source is not supported: name the source rank (src=...)");
}

// ---- barriers and life cycle --------------------------------------------------------------------------

c10::Device process_group::barrier_device(const c10d::BarrierOptions& options) {
  if (options.device) return resolve(*options.device);
  if (!options.device_ids.empty())
    return {c10::kCUDA, static_cast<c10::DeviceIndex>(options.device_ids.front())};
  const std::lock_guard lock(m_mutex);
  // A device that is in use, so that its earlier work is waited for.
  for (const auto& [key, made] : m_made.lanes)
    if (std::get<0>(key) != c10::kCPU) return {std::get<0>(key), std::get<1>(key)};
  return c10::Device(c10::kCPU);
}

work_ptr process_group::barrier(const c10d::BarrierOptions& options) {
  return submit(barrier_device(options), terms_of(options), [] { return plans::barrier(); });
}

void process_group::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const milliseconds timeout = options.timeout == c10d::kUnsetTimeout ? m_settings.timeout : options.timeout;
  const std::string round = c10::str("isthmus_monitored_barrier/", m_monitored_barriers++, "/");
  monitored_barrier(m_store, round, self(), timeout, wait_all_ranks);
}

c10d::ErrorType process_group::getError() {
  const std::lock_guard lock(m_mutex);
  for (const auto& [key, made] : m_made.lanes) {
    try {
      made->place()->check_health();
    } catch (const c10::DistBackendError&) {
      return c10d::ErrorType::COMM_ERROR;
    }
  }
  return c10d::ErrorType::SUCCESS;
}

void process_group::renew() {
  communicators old;
  {
    const std::lock_guard lock(m_mutex);
    check_open();
    TORCH_CHECK(!m_coalesced, "isthmus: process group ", m_settings.name, " is coalescing; end that first");
    ++m_generation;
    old = std::exchange(m_made, {});
  }
  old.close();
}

// Without the group's lock: work that ends meanwhile may call back into the group.
void process_group::communicators::close() {
  for (const auto& [key, made] : pools) made->close();
  for (const auto& [key, made] : lanes) made->shutdown();
}

void process_group::abort() {
  const std::lock_guard lock(m_mutex);
  for (const auto& [key, made] : m_made.lanes) made->abort();
  for (const auto& [key, made] : m_made.pools) made->abort();
  for (const auto& [type, other] : m_fallbacks) other->abort();
}

void process_group::shutdown() {
  communicators old;
  std::map<c10::DeviceType, backend_ptr> fallbacks;
  {
    const std::lock_guard lock(m_mutex);
    m_closed = true;
    old = std::exchange(m_made, {});
    fallbacks = std::exchange(m_fallbacks, {});
  }
  old.close();
  for (const auto& [type, other] : fallbacks) other->shutdown();
}

}  // namespace isthmus::torch_backend
