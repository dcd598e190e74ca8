// libisthmus_hybrid.so: MPI for device buffers, where a rule asks for it (docs/hybrid.md).
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

constexpr std::uint64_t default_piece_bytes = 512 << 10;
constexpr int thread_multiple = 3;

struct session {
  explicit session(const isthmus_backend_context* given) : context(given) {}

  const isthmus_backend_context* context;
  isthmus_mpi_comm comm = nullptr;
  std::unique_ptr<staging> engine;
  std::string version;  // of MPI, and what it gets: for explain and the log

  ~session() {
    engine.reset();
    if (comm != nullptr) context->mpi->comm_free(comm);
  }
};

const char* option_of(const isthmus_backend_context& context, const char* key) {
  return context.option(context.runtime, key);
}

std::uint64_t piece_bytes(const isthmus_backend_context& context) {
  const char* text = option_of(context, "piece_bytes");
  const std::uint64_t asked = text != nullptr ? std::strtoull(text, nullptr, 10) : default_piece_bytes;
  return asked < 4096 ? 4096 : asked / 8 * 8;
}

// How device buffers reach MPI: the option `backend.hybrid.buffers`, which is the same on all ranks.
constexpr std::string_view staged = "staged", device = "device";

std::string_view wanted_buffers(const isthmus_backend_context& context) {
  const char* text = option_of(context, "buffers");
  return text != nullptr ? std::string_view(text) : staged;
}

// What one rank finds out about itself, for all to see.
struct obstacle {
  std::string text, hint;
};

obstacle find_obstacle(const isthmus_backend_context& context, device_runtime& runtime) {
  const char* const threads = "use isthmus::mpi::create after MPI_Init_thread with MPI_THREAD_MULTIPLE";
  if (context.mpi == nullptr) return {"the communicator was not made from MPI", threads};
  if (context.mpi->thread_level < thread_multiple)
    return {"MPI was not initialised with MPI_THREAD_MULTIPLE, and a thread of this backend calls it", threads};
  const std::string asked(wanted_buffers(context));
  if (asked != staged && asked != device)
    return {"backend.hybrid.buffers = '" + asked + "' is none of 'staged' and 'device'",
            "leave the option out"};
  if (asked == device && (context.mpi->device_platforms >> context.device.platform & 1U) == 0)
    return {"backend.hybrid.buffers = 'device', and " + std::string(context.mpi->library) +
                " does not say that it takes buffers of this platform",
            "set backend.hybrid.buffers = 'staged'"};
  const isthmus_platform platform = context.device.platform;
  std::string missing = runtime.load(platform, option_of(context, "runtime_library"), nullptr);
  if (missing.empty()) missing = runtime.load_wait_functions(platform, option_of(context, "driver_library"));
  return {missing, "docs/vendor_backends.md says where libraries are looked for"};
}

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  device_runtime runtime;
  const obstacle found = find_obstacle(*context, runtime);
  vote<> mine;
  if (!found.text.empty()) mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, found.text, found.hint);
  votes<> all;
  if (const auto status = agree(*context, "src/backends/hybrid/hybrid.cpp", mine, all);
      status != ISTHMUS_SUCCESS)
    return status;
  auto made = std::make_unique<session>(context);
  // A communicator of its own: the set-up of other communicators must not meet these calls.
  if (const int code = context->mpi->comm_dup(context->mpi_comm, &made->comm); code != 0)
    return context->fail(context->runtime, ISTHMUS_ERROR_BACKEND, code, "src/backends/hybrid/hybrid.cpp",
                         nullptr, "MPI_Comm_dup failed");
  const bool as_they_are = wanted_buffers(*context) == device;
  made->version = std::string(context->mpi->library) +
                  (as_they_are ? ", on device buffers" : ", on copies in pinned memory");
  context->log(context->runtime, 1, "%s", made->version.c_str());
  made->engine = std::make_unique<staging>(*context, runtime, made->comm, piece_bytes(*context), as_they_are);
  if (const auto status = made->engine->start(); status != ISTHMUS_SUCCESS) return status;
  *state = made.release();
  return ISTHMUS_SUCCESS;
}

staging& engine_of(void* state) { return *static_cast<session*>(state)->engine; }

isthmus_backend make() {
  isthmus_backend table{};
  table.struct_bytes = sizeof(table);
  table.magic = ISTHMUS_BACKEND_MAGIC;
  table.abi_version = ISTHMUS_BACKEND_ABI;
  table.name = "hybrid";
  table.description = "the program's MPI on device buffers, behind the stream";
  table.capabilities = ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS | ISTHMUS_BACKEND_MULTI_NODE;
  table.platforms = 1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_HIP;
  table.create = create;
  table.destroy = [](void* state) {
    engine_of(state).synchronize();
    delete static_cast<session*>(state);
  };
  table.supports = [](void*, const isthmus_operation*, const char* algorithm) -> const char* {
    return algorithm == nullptr ? nullptr : "MPI chooses its algorithms itself";
  };
  table.enqueue = [](void* state, const isthmus_operation* operations, const char* const*, std::size_t n) {
    return engine_of(state).enqueue(operations, n);
  };
  table.poll = [](void* state) { return engine_of(state).poll(); };
  table.abort = [](void* state) { engine_of(state).abort(); };
  table.synchronize = [](void* state) { return engine_of(state).synchronize(); };
  table.version = [](void* state) { return static_cast<session*>(state)->version.c_str(); };
  return table;
}

}  // namespace
}  // namespace isthmus::hybrid

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  static const isthmus_backend table = isthmus::hybrid::make();
  return &table;
}
