// libisthmus_hybrid.so: MPI for device buffers, where a rule asks for it (docs/vendor_backends.md).
#include <isthmus/backend.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "staging.hpp"

namespace isthmus::hybrid {
namespace {

constexpr std::uint64_t default_piece_bytes = 512 << 10;
constexpr int thread_multiple = 3;

struct session {
  explicit session(const isthmus_backend_context* given) : context(given) {}

  const isthmus_backend_context* context;
  isthmus_mpi_comm comm = nullptr;
  std::unique_ptr<staging> engine;

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

std::string obstacle(const isthmus_backend_context& context, staging_runtime& runtime) {
  if (context.mpi == nullptr) return "the communicator was not made from MPI";
  if (context.mpi->thread_level < thread_multiple)
    return "MPI was not initialised with MPI_THREAD_MULTIPLE, and a thread of this backend calls it";
  return runtime.load(context.device.platform, option_of(context, "runtime_library"),
                      option_of(context, "driver_library"));
}

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  staging_runtime runtime;
  struct verdict {
    int usable;
    char reason[252];
  } mine{};
  const std::string reason = obstacle(*context, runtime);
  mine.usable = reason.empty() ? 1 : 0;
  reason.copy(mine.reason, sizeof(mine.reason) - 1);
  std::vector<verdict> all(static_cast<std::size_t>(context->size));
  if (const auto status = context->allgather(context->runtime, &mine, all.data(), sizeof(mine));
      status != ISTHMUS_SUCCESS)
    return status;
  for (int rank = 0; rank < context->size; ++rank)
    if (all[static_cast<std::size_t>(rank)].usable == 0)
      return context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, "src/backend/hybrid/hybrid.cpp",
                           "use isthmus::mpi::create after MPI_Init_thread with MPI_THREAD_MULTIPLE",
                           "rank %d: %s", rank, all[static_cast<std::size_t>(rank)].reason);
  auto made = std::make_unique<session>(context);
  // A communicator of its own: the set-up of other communicators must not meet these calls.
  if (const int code = context->mpi->comm_dup(context->mpi_comm, &made->comm); code != 0)
    return context->fail(context->runtime, ISTHMUS_ERROR_BACKEND, code, "src/backend/hybrid/hybrid.cpp",
                         nullptr, "MPI_Comm_dup failed");
  made->engine = std::make_unique<staging>(*context, runtime, made->comm, piece_bytes(*context));
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
  table.description = "the program's MPI on device buffers, staged through pinned memory behind the stream";
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
  table.version = [](void* state) { return engine_of(state).version(); };
  return table;
}

}  // namespace
}  // namespace isthmus::hybrid

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  static const isthmus_backend table = isthmus::hybrid::make();
  return &table;
}
