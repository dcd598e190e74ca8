
#include <algorithm>
#include <isthmus/plugin.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "backends/mpi/device_queue.hpp"
#include "backends/mpi/mpi_calls.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"
#include "bootstrap/mpi_thread_guard.hpp"
#include "failure/wait.hpp"

namespace isthmus {
namespace mpi {
namespace {

constexpr std::uint64_t default_chunk_bytes = 512 << 10, min_chunk_bytes = 4096;
constexpr int thread_multiple = 3;

// Values of the option `buffers`, which is equal on all ranks.
constexpr std::string_view auto_mode = "auto", staged_mode = "staged", device_mode = "device";

// The state of one rank. It uses `calls` on the host and `queue` on devices.
struct mpi_state {
  explicit mpi_state(const isthmus_backend_context& backend_context)
      : context(backend_context), calls(backend_context, backend_context.mpi_comm) {}
  mpi_state(const mpi_state&) = delete;
  mpi_state& operator=(const mpi_state&) = delete;
  ~mpi_state() {
    queue.reset();
    if (device_comm != nullptr) context.mpi->comm_free(device_comm);
  }

  const isthmus_backend_context& context;
  mpi_calls calls;
  isthmus_mpi_comm device_comm = nullptr;
  std::unique_ptr<device_queue> queue;
  std::string version;
};

mpi_state& state_of(void* state) { return *static_cast<mpi_state*>(state); }

isthmus_status report(const isthmus_backend_context& context, const error& failure) {
  const failure_info& info = failure.info();
  return fail_with_ranks(context, {info.failed_ranks().begin(), info.failed_ranks().end()}, info.status,
                         info.native_code, info.location, info.hint[0] != '\0' ? info.hint : nullptr,
                         info.message);
}

// Runs `function` and reports its exception to the runtime.
template <typename Function>
isthmus_status guarded(const isthmus_backend_context& context, Function&& function) {
  try {
    function();
    return ISTHMUS_SUCCESS;
  } catch (...) {
    return report(context, current_error());
  }
}

// ---- host -------------------------------------------------------------------------------------------------

// Point-to-point operations start immediately and progress while the collectives run in order.
void run_group(mpi_calls& calls, const isthmus_operation* operations, std::size_t n) {
  try {
    for (std::size_t i = 0; i < n; ++i)
      if (is_point_to_point(operations[i].collective)) calls.start(operations[i]);
    for (std::size_t i = 0; i < n; ++i)
      if (!is_point_to_point(operations[i].collective)) calls.run(operations[i]);
    calls.finish();
  } catch (...) {
    calls.cancel();
    throw;
  }
}

isthmus_status enqueue_on_host(mpi_state& state, const isthmus_operation* operations, std::size_t n) {
  const isthmus_backend_context& context = state.context;
  const mpi_thread_guard guard(*context.mpi);
  if (guard.violation() != nullptr)
    return context.fail(context.runtime, ISTHMUS_ERROR_INVALID_USAGE, 0, ISTHMUS_HERE, mpi_thread_guard::hint,
                        "%s", guard.violation());
  return guarded(context, [&] {
    if (n == 1 && !is_point_to_point(operations[0].collective)) return state.calls.run(operations[0]);
    run_group(state.calls, operations, n);
  });
}

// ---- devices ----------------------------------------------------------------------------------------------

// The vote of one rank on the creation of a queue. Its value states whether MPI gets device buffers.
using queue_vote = vote<bool>;

queue_vote check_device(const isthmus_backend_context& context, std::string_view mode) {
  queue_vote own;
  std::string reason;
  if (context.mpi->thread_level < thread_multiple)
    own.refuse(
        ISTHMUS_ERROR_UNSUPPORTED,
        "MPI was not initialized with MPI_THREAD_MULTIPLE, and for device buffers this backend calls MPI "
        "from its own thread",
        mpi_thread_guard::hint);
  else if (device_driver::get(context.device.platform, reason) == nullptr)
    own.refuse(ISTHMUS_ERROR_UNSUPPORTED, reason, "install the driver of the device");
  if (own.is_refusal() || mode == staged_mode) return own;
  own.value = (context.mpi->device_platforms >> context.device.platform & 1U) != 0;
  if (!own.value && mode == device_mode)
    own.refuse(
        ISTHMUS_ERROR_UNSUPPORTED,
        fmt::format("backend.mpi.buffers = 'device', and {} does not report support for device buffers of this "
                    "platform",
                    context.mpi->library),
        "set backend.mpi.buffers = 'staged'");
  return own;
}

// Uses a private MPI communicator: the calls of the queue's thread must not match those of the setup.
void start_queue(mpi_state& state, std::uint64_t chunk_bytes, device_buffers buffers) {
  const isthmus_backend_context& context = state.context;
  if (const int code = context.mpi->comm_dup(context.mpi_comm, &state.device_comm); code != 0)
    throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE, "MPI_Comm_dup failed", {}, code);
  state.version = std::string(context.mpi->library) +
                  (buffers != device_buffers::never ? ", on device buffers" : ", on copies in pinned memory");
  context.log(context.runtime, 1, "%s", state.version.c_str());
  std::string reason;
  state.queue = std::make_unique<device_queue>(context, *device_driver::get(context.device.platform, reason),
                                               state.device_comm, chunk_bytes, buffers);
}

isthmus_status create_queue(mpi_state& state) {
  const isthmus_backend_context& context = state.context;
  if (context.is_chosen_by_default != 0)
    return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE,
                        "add a rule such as platform=cuda bytes=..16K use=mpi",
                        "MPI gets device buffers only if a rule of the configuration names mpi");
  const char* const text = context.option(context.runtime, "buffers");
  const std::string_view mode = text != nullptr ? std::string_view(text) : auto_mode;
  if (mode != auto_mode && mode != staged_mode && mode != device_mode)
    return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, "leave the option out",
                        "backend.mpi.buffers = '%s' must be 'auto', 'staged' or 'device'", text);
  std::uint64_t chunk_bytes = 0;
  if (const auto status = read_chunk_bytes(context, "mpi", default_chunk_bytes, min_chunk_bytes, chunk_bytes))
    return status;
  votes<bool> all;
  if (const auto status = agree(context, ISTHMUS_HERE, check_device(context, mode), all)) return status;
  const bool has_support = std::ranges::all_of(all, [](const queue_vote& each) { return each.value; });
  const device_buffers buffers = !has_support          ? device_buffers::never
                                 : mode == device_mode ? device_buffers::always
                                                       : device_buffers::where_possible;
  return guarded(context, [&] { start_queue(state, chunk_bytes, buffers); });
}

// ---- both -------------------------------------------------------------------------------------------------

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  if (context->mpi == nullptr)
    return context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE,
                         "create the communicator with isthmus::mpi::create",
                         "the communicator was not created from MPI");
  std::unique_ptr<mpi_state> new_state;
  if (const auto status = guarded(*context, [&] { new_state = std::make_unique<mpi_state>(*context); }))
    return status;
  if (context->device.platform != ISTHMUS_PLATFORM_HOST)
    if (const auto status = create_queue(*new_state)) return status;
  *state = new_state.release();
  return ISTHMUS_SUCCESS;
}

// The runtime has synchronized the queue. If that failed, it has aborted the queue, so its thread does not wait.
void destroy(void* state) { delete &state_of(state); }

const char* supports(void*, const isthmus_operation*, int) { return nullptr; }

isthmus_status enqueue(void* state, const isthmus_operation* operations, const int*, std::size_t n) {
  mpi_state& own = state_of(state);
  if (!own.queue) return enqueue_on_host(own, operations, n);
  return guarded(own.context, [&] { own.queue->enqueue(operations, n); });
}

isthmus_status poll(void* state) {
  mpi_state& own = state_of(state);
  return own.queue ? guarded(own.context, [&] { own.queue->check(); }) : ISTHMUS_SUCCESS;
}

isthmus_status synchronize(void* state) {
  mpi_state& own = state_of(state);
  return own.queue ? guarded(own.context, [&] { own.queue->synchronize(); }) : ISTHMUS_SUCCESS;
}

void abort_operations(void* state) {
  mpi_state& own = state_of(state);
  own.queue ? own.queue->abort() : own.calls.abort();
}

const char* version(void* state) {
  const mpi_state& own = state_of(state);
  return own.queue ? own.version.c_str() : own.context.mpi->library;
}

}  // namespace
}  // namespace mpi

const isthmus_backend* mpi_backend() noexcept {
  static const isthmus_backend backend = [] {
    isthmus_backend functions{};
    functions.struct_bytes = sizeof functions;
    functions.magic = ISTHMUS_BACKEND_MAGIC;
    functions.abi_version = ISTHMUS_BACKEND_ABI;
    functions.name = "mpi";
    functions.description = "the MPI library of the program";
    functions.capabilities =
        ISTHMUS_BACKEND_BLOCKING_ON_HOST | ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS | ISTHMUS_BACKEND_MULTI_NODE;
    functions.platforms =
        1u << ISTHMUS_PLATFORM_HOST | 1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_HIP;
    functions.create = mpi::create;
    functions.destroy = mpi::destroy;
    functions.supports = mpi::supports;
    functions.enqueue = mpi::enqueue;
    functions.poll = mpi::poll;
    functions.abort = mpi::abort_operations;
    functions.synchronize = mpi::synchronize;
    functions.version = mpi::version;
    return functions;
  }();
  return &backend;
}

}  // namespace isthmus
