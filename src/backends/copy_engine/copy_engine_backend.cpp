#include "backends/copy_engine/copy_engine_backend.hpp"

#include <fmt/format.h>

#include <cstring>
#include <isthmus/plugin.hpp>
#include <memory>
#include <vector>

#include "backends/copy_engine/session.hpp"
#include "base/error.hpp"

namespace isthmus {
namespace {

using copy_engine::copy_engine_state;
using copy_engine::settings;

// What every rank tells the others before they share memory. Plain bytes.
struct rank_record {
  char bus_id[32];
  char no_kernels[200];  // why this rank can't combine; "" when it can
};

copy_engine_state& self(void* state) { return *static_cast<copy_engine_state*>(state); }

// Without a compiler for kernels, only reductions are missing.
void find_compiler(const isthmus_backend_context& context, device_driver& driver, copy_engine_state& made,
                   rank_record& mine) {
  const bool cuda = context.device.platform == ISTHMUS_PLATFORM_CUDA;
  const char* option = context.option(context.runtime, cuda ? "nvrtc_library" : "hiprtc_library");
  std::string reason;
  if (kernel_compiler* compiler = kernel_compiler::get(context.device.platform, driver, option, reason))
    made.set_compiler(*compiler);
  else
    copy_text(mine.no_kernels, sizeof mine.no_kernels, reason);
}

// The pieces of a rank that come before any other rank is needed. Returns what is in the way, or "".
std::string prepare(const isthmus_backend_context& context, settings& options, std::unique_ptr<copy_engine_state>& made,
                    rank_record& mine) {
  if (context.device.platform == ISTHMUS_PLATFORM_LEVEL_ZERO)
    return "streams of this platform are SYCL queues, which the core can't turn into command lists";
  if (context.node_size != context.size) return "the ranks are on several machines";
  if (context.size > copy_engine::max_ranks)
    return fmt::format("{} ranks; at most {} are possible", context.size, copy_engine::max_ranks);
  if (context.heap_allocate == nullptr || context.heap_free == nullptr)
    return "the runtime has no symmetric heap for backends here";
  std::string problem = read_settings(context, options);
  if (!problem.empty()) return problem;
  device_driver* driver = device_driver::get(context.device.platform, problem);
  if (driver == nullptr) return problem;
  try {
    if (context.device.ordinal < 0 || context.device.ordinal >= driver->device_count())
      return fmt::format("device {} of {} does not exist", context.device.ordinal, driver->device_count());
    copy_text(mine.bus_id, sizeof mine.bus_id, driver->bus_id(context.device.ordinal));
    made = std::make_unique<copy_engine_state>(context, *driver, options);
    find_compiler(context, *driver, *made, mine);
  } catch (const error& caught) {
    return caught.what();
  }
  return "";
}

// Collective: SUCCESS where no rank has a problem, else UNSUPPORTED on all.
isthmus_status all_can(const isthmus_backend_context& context, const rank_record& mine,
                       const std::string& problem, votes<rank_record>& all) {
  vote<rank_record> own;
  own.value = mine;
  if (!problem.empty()) own.refuse(ISTHMUS_ERROR_UNSUPPORTED, problem);
  return agree(context, ISTHMUS_HERE, own, all);
}

// Streams of one device may share a queue, in which a rank that waits would keep the other from answering;
// those of several processes do not.
std::string shared_device(const isthmus_backend_context& context, const votes<rank_record>& all,
                          bool may_share) {
  for (std::size_t first = 0; first < all.size(); ++first)
    for (std::size_t second = first + 1; second < all.size(); ++second)
      if (std::strcmp(all[first].value.bus_id, all[second].value.bus_id) == 0 &&
          (!may_share || context.process_of[first] == context.process_of[second]))
        return fmt::format("ranks {} and {} share the device {}; copy engines need a device for each rank",
                           first, second, all[first].value.bus_id);
  return "";
}

std::string unreachable_peer(const isthmus_backend_context& context, const isthmus_heap_block& shared) {
  for (int rank = 0; rank < context.size; ++rank)
    if (shared.peers[rank] == nullptr) return fmt::format("the memory of rank {} can't be mapped", rank);
  return "";
}

isthmus_status unsupported(const isthmus_backend_context& context, const std::string& reason) {
  return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr, "%s",
                      reason.c_str());
}

isthmus_status create(const isthmus_backend_context* given, void** state) {
  *state = nullptr;
  const isthmus_backend_context& context = *given;
  rank_record mine{};
  settings options;
  std::unique_ptr<copy_engine_state> made;
  votes<rank_record> all;
  const std::string problem = prepare(context, options, made, mine);
  if (const isthmus_status status = all_can(context, mine, problem, all)) return status;
  if (const std::string shared = shared_device(context, all, options.share_device); !shared.empty())
    return unsupported(context, shared);

  isthmus_heap_block shared{};
  const std::uint64_t bytes =
      copy_engine::peer_memory::bytes_for(context.size == 1 ? 0 : options.staging_bytes);
  if (context.heap_allocate(context.runtime, bytes, &shared) != ISTHMUS_SUCCESS)
    return unsupported(context, fmt::format("no shared block of {} bytes on these devices", bytes));
  if (const isthmus_status status = all_can(context, mine, unreachable_peer(context, shared), all)) {
    context.heap_free(context.runtime, shared.id);
    return status;
  }
  made->open(shared);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (const char* text = all[rank].value.no_kernels; *text != '\0')
      made->refuse_reductions(fmt::format("no kernel for reductions: rank {}: {}", rank, text));
  *state = made.release();
  return ISTHMUS_SUCCESS;
}

isthmus_backend make_table() {
  isthmus_backend made{};
  made.struct_bytes = sizeof made;
  made.magic = ISTHMUS_BACKEND_MAGIC;
  made.abi_version = ISTHMUS_BACKEND_ABI;
  made.name = "copy_engine";
  made.description = "copies by the devices' DMA engines between peers of one machine";
  made.capabilities = ISTHMUS_BACKEND_GRAPH_CAPTURE | ISTHMUS_BACKEND_RANK_ORDER;
  made.platforms = 1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_HIP | 1u << ISTHMUS_PLATFORM_LEVEL_ZERO;
  made.create = create;
  made.destroy = [](void* state) { delete static_cast<copy_engine_state*>(state); };
  made.supports = [](void* state, const isthmus_operation* operation, const char* algorithm) {
    return self(state).supports(*operation, algorithm);
  };
  made.algorithms = copy_engine::algorithm_names;
  made.enqueue = [](void* state, const isthmus_operation* operations, const char* const* algorithms,
                    std::size_t n) { return self(state).enqueue(operations, algorithms, n); };
  made.poll = [](void* state) { return self(state).poll(); };
  made.abort = [](void* state) { self(state).abort(); };
  made.synchronize = [](void* state) { return self(state).synchronize(); };
  made.version = [](void* state) { return self(state).version(); };
  return made;
}

}  // namespace

const isthmus_backend* copy_engine_backend() noexcept {
  static const isthmus_backend table = make_table();
  return &table;
}

}  // namespace isthmus
