#include "process_group.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <numeric>

#include "failure/wait.hpp"
#include "message_receiver.hpp"
#include "tasks.hpp"

namespace isthmus::torch_backend {
namespace {

std::string name_of(c10::Device device) { return device.is_cpu() ? "cpu" : device.str(); }

std::vector<int64_t> missing_ranks(int size, const std::vector<int>& ranks) {
  std::vector<int64_t> all(static_cast<std::size_t>(size)), missing;
  std::iota(all.begin(), all.end(), 0);
  std::set_difference(all.begin(), all.end(), ranks.begin(), ranks.end(), std::back_inserter(missing));
  return missing;
}

// Returns a part of the store with the keys of this group only. A store still holds the keys of earlier groups with the
// same name, for example those before destroy_process_group and another init_process_group. Every rank creates the
// same groups, so the number of its creations identifies the group.
process_group::store_ptr own_keys(const process_group::store_ptr& store, int rank) {
  const int64_t creation = store->add(c10::str("isthmus_creations_", rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>(c10::str("isthmus_", creation), store);
}

}  // namespace

process_group::process_group(store_ptr store, int rank, int size, group_settings settings)
    : versioned_backend(rank, size),
      m_base_store(store),
      m_store(own_keys(store, rank)),
      m_settings(std::move(settings)),
      m_options(c10::make_intrusive<Options>("isthmus", m_settings.timeout)) {
  set_group_name(*m_options, m_settings.name);
  init();
}

// Releases the GIL, because the threads joined here may run callbacks of futures that wait for it.
process_group::~process_group() {
  if (m_fork.is_inherited()) {
    // Keeps the objects of the parent process, because their destructors wait for its threads.
    new communicator_set(std::move(m_communicators));
    new std::map(std::move(m_fallbacks));
    return;
  }
  std::optional<pybind11::gil_scoped_release> gil_release;
  if (Py_IsInitialized() && PyGILState_Check()) gil_release.emplace();
  for (const auto& [key, entry] : m_communicators.pools) entry->close();  // tensors may outlive the group
  m_communicators.executors.clear();
  m_fallbacks.clear();
}

c10::intrusive_ptr<c10d::Backend::Options> process_group::getBackendOptions() { return m_options; }

void process_group::setTimeout(milliseconds timeout) {
  const std::lock_guard lock(m_mutex);
  m_settings.timeout = timeout;  // applies to executors created later
  m_options->timeout = timeout;
}

// ---- executors ----------------------------------------------------------------------------------------

// Resolves "cuda" without an index to the current device.
c10::Device process_group::resolve(c10::Device device) const {
  if (device.is_cpu()) return c10::Device(c10::kCPU);
  TORCH_CHECK_VALUE(device.is_cuda(), "isthmus: tensors on ", device.str(),
                    " are not supported; use cpu or cuda");
  if (device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

std::shared_ptr<task_executor> process_group::executor_for(c10::Device device, const message_channel& channel) {
  check_process();
  const std::lock_guard lock(m_mutex);
  check_open();
  const executor_key key{device.type(), device.index(), channel};
  const auto cached = m_communicators.executors.find(key);
  if (cached != m_communicators.executors.end()) return cached->second;
  return m_communicators.executors.emplace(key, make_executor(device, channel)).first->second;
}

void process_group::check_open() const {
  if (m_is_closed)
    C10_THROW_ERROR(DistBackendError, c10::str("isthmus: process group ", m_settings.name, " was shut down"));
  if (m_settings.awaits_reconfigure)
    C10_THROW_ERROR(DistBackendError,
                    c10::str("isthmus: process group ", m_settings.name,
                             " was created with enable_reconfigure and has no members yet; call "
                             "torch.distributed._reconfigure first"));
}

void process_group::check_process() const {
  if (m_fork.is_inherited()) throw_inherited(m_settings.name);
}

std::unique_ptr<task_executor> process_group::make_executor(c10::Device device,
                                                            const message_channel& channel) const {
  const bool is_message = channel.source >= 0;
  endpoint_settings settings = endpoint_settings_for(device);
  if (is_message) {
    settings.rank = channel.source == getRank() ? 0 : 1;
    settings.size = 2;
    settings.collectives = 1u << ISTHMUS_SEND | 1u << ISTHMUS_RECV;
    settings.scope += c10::str("_", channel.source, "_", channel.destination);
  }
  auto endpoint = std::make_shared<device_endpoint>(m_store, std::move(settings));
  if (is_message && device.is_cpu() && channel.destination == getRank())
    return std::make_unique<message_receiver>(std::move(endpoint), m_settings.timeout, channel.source);
  return make_executor(device, std::move(endpoint));
}

std::unique_ptr<task_executor> process_group::make_executor(c10::Device device,
                                                            std::shared_ptr<device_endpoint> endpoint) const {
  if (device.is_cpu()) return std::make_unique<host_executor>(std::move(endpoint), m_settings.timeout);
  return std::make_unique<device_executor>(std::move(endpoint), m_settings.timeout, device);
}

// Returns the settings of the endpoint that connects all ranks of the group on `device`.
endpoint_settings process_group::endpoint_settings_for(c10::Device device) const {
  endpoint_settings settings;
  settings.rank = getRank();
  settings.size = getSize();
  settings.device = device.is_cpu() ? isthmus_device{ISTHMUS_PLATFORM_HOST, 0}
                                    : isthmus_device{m_settings.accelerator, device.index()};
  settings.timeout_s = static_cast<double>(m_settings.timeout.count()) / 1e3;
  settings.scope = device.is_cpu() ? "isthmus_cpu" : "isthmus_cuda";
  if (m_generation > 0)
    settings.scope += c10::str("_", m_generation);  // the store still holds the keys of earlier generations
  settings.group = m_settings.name;
  settings.device_name = name_of(device);
  settings.has_nonblocking_store = m_settings.has_nonblocking_store;
  return settings;
}

std::shared_ptr<tensor_pool> process_group::pool_for(c10::Device device) {
  const std::shared_ptr<device_endpoint> heap = executor_for(device)->endpoint();
  const std::lock_guard lock(m_mutex);
  check_open();
  auto& entry = m_communicators.pools[{device.type(), device.index()}];
  if (!entry) {
    endpoint_settings ballot_settings = endpoint_settings_for(c10::kCPU);
    ballot_settings.scope = heap->settings().scope + "_pool";
    ballot_settings.group += " (memory pool)";
    entry = std::make_shared<tensor_pool>(
        heap, std::make_shared<device_endpoint>(m_store, std::move(ballot_settings)));
  }
  return entry;
}

at::Tensor process_group::allocateTensor(long elements, at::TensorOptions options) {
  TORCH_CHECK_VALUE(elements >= 0, "isthmus: allocate_tensor: size is ", elements, "; it must be >= 0");
  const c10::Device device = resolve(options.device());
  return pool_for(device)->allocate(elements, options.device(device), executor_for(device)->streams());
}

isthmus_communicator process_group::communicator(c10::Device device) {
  return executor_for(resolve(device))->endpoint()->open();
}

work_ptr process_group::submit(c10::Device device, const wait_options& wait,
                               c10::function_ref<collective_task()> build) {
  ++m_sequence;
  const std::shared_ptr<task_executor> executor = executor_for(resolve(device));
  const batch_call call(current_batch());
  collective_task task = executor->prepare(wait.is_asynchronous || call.batch != nullptr, build);
  if (wait.timeout != c10d::kUnsetTimeout) task.timeout = wait.timeout;
  if (call.batch == nullptr) return executor->run(std::move(task));
  call.batch->tasks[{device.type(), resolve(device).index()}].append(std::move(task));
  return nullptr;
}

// ---- coalescing ---------------------------------------------------------------------------------------

process_group::coalesced_calls* process_group::current_batch() {
  const std::lock_guard lock(m_mutex);
  const auto batch = m_batches.find(std::this_thread::get_id());
  if (batch == m_batches.end()) return nullptr;
  TORCH_CHECK(!batch->second->has_failed, "isthmus: a coalesced call of process group ", m_settings.name,
              " failed; call endCoalescing before other calls");
  return batch->second.get();
}

void process_group::startCoalescing() {
  const std::lock_guard lock(m_mutex);
  auto& batch = m_batches[std::this_thread::get_id()];
  TORCH_CHECK(!batch, "isthmus: process group ", m_settings.name,
              " is already coalescing in this thread; call endCoalescing first");
  batch = std::make_unique<coalesced_calls>();
}

std::unique_ptr<process_group::coalesced_calls> process_group::take_batch() {
  const std::lock_guard lock(m_mutex);
  auto batch = m_batches.extract(std::this_thread::get_id());
  return batch ? std::move(batch.mapped()) : nullptr;
}

void process_group::cancel_coalescing() { take_batch(); }

work_ptr process_group::endCoalescing() {
  const std::unique_ptr<coalesced_calls> batch = take_batch();
  TORCH_CHECK(batch != nullptr, "isthmus: endCoalescing was called without startCoalescing in this thread");
  TORCH_CHECK(!batch->has_failed, "isthmus: a coalesced call of process group ", m_settings.name,
              " failed, so no call was started");
  for (auto& [executor, message] : batch->messages) batch->works.push_back(executor->run(std::move(message)));
  for (auto& [device, batched_task] : batch->tasks) {
    batched_task.kind = c10d::OpType::COALESCED;
    batched_task.title = "isthmus:coalesced";
    batch->works.push_back(
        executor_for(c10::Device(device.first, device.second))->run(std::move(batched_task)));
  }
  if (batch->works.size() == 1) return batch->works.front();
  return c10::make_intrusive<joined_work>(getRank(), std::move(batch->works));
}

// ---- fallback to PyTorch's backends ---------------------------------------------------------------------

c10d::Backend& process_group::fallback(c10::Device device, const char* collective, const std::string& reason,
                                       const at::Tensor& data) {
  check_process();
  const std::lock_guard lock(m_mutex);
  auto& other = m_fallbacks[device.type()];
  if (!other) {
    other = m_settings.make_fallback(c10::make_intrusive<c10d::PrefixStore>("isthmus_fallback", m_store),
                                     device.type(), getRank(), getSize());
    TORCH_WARN("isthmus: ", collective, " of ", data.scalar_type(), " uses PyTorch's backend ",
               other->getBackendName(), ": ", reason,
               " (logged once per group; isthmus.torch.report() counts all such calls)");
  }
  const call_path path{m_settings.name, name_of(resolve(device)), collective,
                       "torch:" + other->getBackendName(), reason};
  path_report::instance().counter_for(path).add(data.is_sparse() ? 0 : data.nbytes(), 0);
  return *other;
}

// ---- barriers and life cycle --------------------------------------------------------------------------

c10::Device process_group::barrier_device(const c10d::BarrierOptions& options) {
  if (options.device) return resolve(*options.device);
  if (!options.device_ids.empty())
    return {c10::kCUDA, static_cast<c10::DeviceIndex>(options.device_ids.front())};
  const std::lock_guard lock(m_mutex);
  // Prefer a device that is already in use, so that the barrier waits for its earlier work.
  for (const auto& [key, entry] : m_communicators.executors)
    if (std::get<0>(key) != c10::kCPU) return {std::get<0>(key), std::get<1>(key)};
  return c10::Device(c10::kCPU);
}

work_ptr process_group::barrier(const c10d::BarrierOptions& options) {
  return submit(barrier_device(options), wait_options_from(options), [] { return tasks::barrier(); });
}

// Every rank notifies rank 0 through the group's store and waits for its reply.
void process_group::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const milliseconds timeout = options.timeout == c10d::kUnsetTimeout ? m_settings.timeout : options.timeout;
  const std::string key_prefix = c10::str("isthmus_monitored_barrier/", m_monitored_barrier_count++, "/");
  const store_ptr own_store = clone_store(m_store);
  const auto deadline = deadline_after(timeout);
  const auto wait_for_rank = [&](int rank) {
    return poll_until([&] { return own_store->check({key_prefix + std::to_string(rank)}); }, deadline,
                      milliseconds(1));
  };
  const std::vector<uint8_t> arrival_value{1};
  if (getRank() != 0) {
    own_store->set(key_prefix + std::to_string(getRank()), arrival_value);
    if (!wait_for_rank(0))
      C10_THROW_ERROR(DistBackendError,
                      c10::str("isthmus: monitored_barrier: rank ", getRank(), " waited ", timeout.count(),
                               " ms for rank 0 to report that all ranks arrived"));
    return;
  }
  std::string missing;
  for (int rank = 1; rank < getSize(); ++rank) {
    if (wait_for_rank(rank)) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    if (!wait_all_ranks) break;
  }
  if (!missing.empty())
    C10_THROW_ERROR(DistBackendError, c10::str("isthmus: monitored_barrier: ranks that did not arrive within ",
                                               timeout.count(), " ms: ", missing));
  own_store->set(key_prefix + "0", arrival_value);
}

error_type process_group::getError() {
  if (m_fork.is_inherited()) return error_type::COMM_ERROR;
  const std::lock_guard lock(m_mutex);
  for (const auto& [key, entry] : m_communicators.executors) {
    try {
      entry->endpoint()->check_health();
    } catch (const c10::DistBackendError&) {
      return error_type::COMM_ERROR;
    }
  }
  return error_type::SUCCESS;
}

void process_group::renew() {
  check_process();
  communicator_set old;
  {
    const std::lock_guard lock(m_mutex);
    check_open();
    TORCH_CHECK(m_batches.empty(), "isthmus: process group ", m_settings.name,
                " is coalescing; call endCoalescing first");
    ++m_generation;
    old = std::exchange(m_communicators, {});
  }
  old.close();
}

// Must be called without the group's lock, because callbacks of completing work may call into the group.
void process_group::communicator_set::close() {
  for (const auto& [key, entry] : pools) entry->close();
  for (const auto& [key, entry] : executors) entry->shutdown();
}

void process_group::abort() {
  if (m_fork.is_inherited()) return;
  const std::lock_guard lock(m_mutex);
  for (const auto& [key, entry] : m_communicators.executors) entry->abort();
  for (const auto& [key, entry] : m_communicators.pools) entry->abort();
  for (const auto& [type, other] : m_fallbacks) abort_backend(*other);
}

void process_group::shutdown() {
  if (m_fork.is_inherited()) return;
  communicator_set old;
  std::map<c10::DeviceType, backend_ptr> old_fallbacks;
  {
    const std::lock_guard lock(m_mutex);
    m_is_closed = true;
    old = std::exchange(m_communicators, {});
    old_fallbacks = std::exchange(m_fallbacks, {});
  }
  old.close();
  for (const auto& [type, other] : old_fallbacks) shut_down_backend(*other);
}

// ---- shrinking to the survivors of a failure (docs/guide/failures.md) ----------------------------------------

c10::Device process_group::used_device() {
  const std::lock_guard lock(m_mutex);
  for (const auto& [key, entry] : m_communicators.executors) {
    const auto& [type, index, channel] = key;
    if (channel == message_channel{}) return {type, index};
  }
  C10_THROW_ERROR(DistBackendError, c10::str("isthmus: shrink: process group ", m_settings.name,
                                             " has made no collective call yet; there is nothing to shrink"));
}

std::vector<int64_t> process_group::agree_on_lost_ranks(double wait_s) {
  const c10::Device device = used_device();
  shrink_result result = executor_for(device)->endpoint()->shrink(wait_s);
  const std::vector<int64_t> lost_ranks = missing_ranks(getSize(), result.ranks);
  c10::intrusive_ptr<process_group> survivor_group;
  if (!lost_ranks.empty()) {
    // The store still holds the keys of this group, so the new group uses a different prefix.
    const std::string prefix = c10::str("isthmus_without_", c10::Join("_", lost_ranks));
    group_settings settings = m_settings;
    settings.name += "_shrunk";
    const auto own_rank = std::find(result.ranks.begin(), result.ranks.end(), getRank()) - result.ranks.begin();
    survivor_group = c10::make_intrusive<process_group>(
        c10::make_intrusive<c10d::PrefixStore>(prefix, m_store), static_cast<int>(own_rank),
        static_cast<int>(result.ranks.size()), std::move(settings));
  } else {
    renew();
  }
  process_group& next_group = lost_ranks.empty() ? *this : *survivor_group;
  auto endpoint = std::make_shared<device_endpoint>(
      next_group.m_store, next_group.endpoint_settings_for(device), std::move(result));
  {
    const std::lock_guard lock(next_group.m_mutex);
    next_group.m_communicators.executors[{device.type(), device.index(), message_channel{}}] =
        next_group.make_executor(device, std::move(endpoint));
  }
  const std::lock_guard lock(m_mutex);
  m_survivor_group = std::move(survivor_group);
  m_lost_ranks = lost_ranks;
  return lost_ranks;
}

process_group::backend_ptr process_group::shrink(const std::vector<int64_t>& excluded, int /*flags*/,
                                                 const c10::intrusive_ptr<Options>& /*new_options*/) {
  if (!m_survivor_group) agree_on_lost_ranks(0);
  const std::lock_guard lock(m_mutex);
  if (m_lost_ranks != excluded)
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("isthmus: shrink: process group ", m_settings.name, ": excluded ranks are ",
                 c10::Join(", ", excluded), "; they must be the lost ranks: ", c10::Join(", ", m_lost_ranks)));
  return std::exchange(m_survivor_group, nullptr);
}

}  // namespace isthmus::torch_backend
