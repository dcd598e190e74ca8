// libisthmus_hybrid.so: collectives on device buffers over the program's MPI. Used only if a rule selects it.
#include <isthmus/backend.h>

#include <cstdlib>
#include <isthmus/plugin.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "staging_queue.hpp"

namespace isthmus::hybrid {
namespace {

constexpr std::uint64_t default_chunk_bytes = 512 << 10;
constexpr int thread_multiple = 3;

struct hybrid_state {
  explicit hybrid_state(const isthmus_backend_context* backend_context) : context(backend_context) {}

  const isthmus_backend_context* context;
  isthmus_mpi_comm comm = nullptr;
  std::unique_ptr<staging_queue> queue;
  std::string version;  // MPI library and buffer mode, for explain and the log

  ~hybrid_state() {
    queue.reset();
    if (comm != nullptr) context->mpi->comm_free(comm);
  }
};

const char* option_of(const isthmus_backend_context& context, const char* key) {
  return context.option(context.runtime, key);
}

std::uint64_t read_chunk_bytes(const isthmus_backend_context& context) {
  const char* text = option_of(context, "chunk_bytes");
  const std::uint64_t requested = text != nullptr ? std::strtoull(text, nullptr, 10) : default_chunk_bytes;
  return requested < 4096 ? 4096 : requested / 8 * 8;
}

// Values of the option `backend.hybrid.buffers`, which is equal on all ranks: whether MPI receives copies in
// pinned host memory or the device buffers themselves.
constexpr std::string_view staged_mode = "staged", device_mode = "device";

std::string_view buffer_mode(const isthmus_backend_context& context) {
  const char* text = option_of(context, "buffers");
  return text != nullptr ? std::string_view(text) : staged_mode;
}

// A requirement that this rank does not satisfy; `text` is empty if it satisfies all requirements.
struct requirement_failure {
  std::string text, hint;
};

requirement_failure check_requirements(const isthmus_backend_context& context, device_runtime& runtime) {
  const char* const thread_hint = "call MPI_Init_thread with MPI_THREAD_MULTIPLE, then isthmus::mpi::create";
  if (context.mpi == nullptr) return {"the communicator was not created from MPI", thread_hint};
  if (context.mpi->thread_level < thread_multiple)
    return {"MPI was not initialized with MPI_THREAD_MULTIPLE, and this backend calls MPI from its own thread",
            thread_hint};
  const std::string requested(buffer_mode(context));
  if (requested != staged_mode && requested != device_mode)
    return {"backend.hybrid.buffers = '" + requested + "' must be 'staged' or 'device'",
            "leave the option out"};
  if (requested == device_mode && (context.mpi->device_platforms >> context.device.platform & 1U) == 0)
    return {"backend.hybrid.buffers = 'device', and " + std::string(context.mpi->library) +
                " does not report support for device buffers of this platform",
            "set backend.hybrid.buffers = 'staged'"};
  const isthmus_platform platform = context.device.platform;
  std::string missing = runtime.load(platform, option_of(context, "runtime_library"), nullptr);
  if (missing.empty()) missing = runtime.load_wait_functions(platform, option_of(context, "driver_library"));
  return {missing, "see docs/internals/nccl.md for the search path of libraries"};
}

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  device_runtime runtime;
  const requirement_failure failure = check_requirements(*context, runtime);
  vote<> own_vote;
  if (!failure.text.empty()) own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, failure.text, failure.hint);
  votes<> all;
  if (const auto status = agree(*context, "src/backends/hybrid/hybrid.cpp", own_vote, all);
      status != ISTHMUS_SUCCESS)
    return status;
  auto new_state = std::make_unique<hybrid_state>(context);
  // Use a private MPI communicator: these calls must not match those of another communicator's setup.
  if (const int code = context->mpi->comm_dup(context->mpi_comm, &new_state->comm); code != 0)
    return context->fail(context->runtime, ISTHMUS_ERROR_BACKEND, code, "src/backends/hybrid/hybrid.cpp",
                         nullptr, "MPI_Comm_dup failed");
  const bool uses_device_buffers = buffer_mode(*context) == device_mode;
  new_state->version = std::string(context->mpi->library) +
                       (uses_device_buffers ? ", on device buffers" : ", on copies in pinned memory");
  context->log(context->runtime, 1, "%s", new_state->version.c_str());
  new_state->queue = std::make_unique<staging_queue>(*context, runtime, new_state->comm,
                                                     read_chunk_bytes(*context), uses_device_buffers);
  if (const auto status = new_state->queue->start(); status != ISTHMUS_SUCCESS) return status;
  *state = new_state.release();
  return ISTHMUS_SUCCESS;
}

staging_queue& queue_of(void* state) { return *static_cast<hybrid_state*>(state)->queue; }

isthmus_backend make_backend() {
  isthmus_backend table{};
  table.struct_bytes = sizeof(table);
  table.magic = ISTHMUS_BACKEND_MAGIC;
  table.abi_version = ISTHMUS_BACKEND_ABI;
  table.name = "hybrid";
  table.description = "the MPI library of the program, on device buffers and ordered by the stream";
  table.capabilities = ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS | ISTHMUS_BACKEND_MULTI_NODE;
  table.platforms = 1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_HIP;
  table.create = create;
  table.destroy = [](void* state) {
    queue_of(state).synchronize();
    delete static_cast<hybrid_state*>(state);
  };
  table.supports = [](void*, const isthmus_operation*, int) -> const char* { return nullptr; };
  table.enqueue = [](void* state, const isthmus_operation* operations, const int*, std::size_t n) {
    return queue_of(state).enqueue(operations, n);
  };
  table.poll = [](void* state) { return queue_of(state).poll(); };
  table.abort = [](void* state) { queue_of(state).abort(); };
  table.synchronize = [](void* state) { return queue_of(state).synchronize(); };
  table.version = [](void* state) { return static_cast<hybrid_state*>(state)->version.c_str(); };
  return table;
}

}  // namespace
}  // namespace isthmus::hybrid

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  static const isthmus_backend table = isthmus::hybrid::make_backend();
  return &table;
}
