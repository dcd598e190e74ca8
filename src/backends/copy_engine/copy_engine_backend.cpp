#include "backends/copy_engine/copy_engine_backend.hpp"

#include <fmt/format.h>

#include <cstring>
#include <isthmus/plugin.hpp>
#include <memory>
#include <vector>

#include "backends/copy_engine/copy_engine_state.hpp"
#include "base/error.hpp"

namespace isthmus {
namespace {

using copy_engine::copy_engine_state;
using copy_engine::settings;

// What every rank tells the others before they share memory. Plain bytes.
struct rank_record {
  char bus_id[32];
  char no_kernels_reason[200];  // why this rank can't combine; "" when it can
};

copy_engine_state& self(void* state) { return *static_cast<copy_engine_state*>(state); }

// Without a compiler for kernels, only reductions are missing.
void find_compiler(const isthmus_backend_context& context, device_driver& driver, copy_engine_state& created,
                   rank_record& own_record) {
  const bool is_cuda = context.device.platform == ISTHMUS_PLATFORM_CUDA;
  const char* option = context.option(context.runtime, is_cuda ? "nvrtc_library" : "hiprtc_library");
  std::string reason;
  if (kernel_compiler* compiler = kernel_compiler::get(context.device.platform, driver, option, reason))
    created.set_compiler(*compiler);
  else
    copy_text(own_record.no_kernels_reason, sizeof own_record.no_kernels_reason, reason);
}

// The pieces of a rank that come before any other rank is needed. Returns what is in the way, or "".
std::string prepare(const isthmus_backend_context& context, settings& options, std::unique_ptr<copy_engine_state>& created,
                    rank_record& own_record) {
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
    copy_text(own_record.bus_id, sizeof own_record.bus_id, driver->bus_id(context.device.ordinal));
    created = std::make_unique<copy_engine_state>(context, *driver, options);
    find_compiler(context, *driver, *created, own_record);
  } catch (const error& caught) {
    return caught.what();
  }
  return "";
}

// Collective: SUCCESS where no rank has a problem, else UNSUPPORTED on all.
isthmus_status agree_on(const isthmus_backend_context& context, const rank_record& own_record,
                       const std::string& problem, votes<rank_record>& all) {
  vote<rank_record> own;
  own.value = own_record;
  if (!problem.empty()) own.refuse(ISTHMUS_ERROR_UNSUPPORTED, problem);
  return agree(context, ISTHMUS_HERE, own, all);
}

// Streams of one device may share a queue, in which a rank that waits would keep the other from answering;
// those of several processes do not.
std::string describe_shared_device(const isthmus_backend_context& context, const votes<rank_record>& all,
                          bool may_share) {
  for (std::size_t first = 0; first < all.size(); ++first)
    for (std::size_t second = first + 1; second < all.size(); ++second)
      if (std::strcmp(all[first].value.bus_id, all[second].value.bus_id) == 0 &&
          (!may_share || context.process_of[first] == context.process_of[second]))
        return fmt::format("ranks {} and {} share the device {}; copy engines need a device for each rank",
                           first, second, all[first].value.bus_id);
  return "";
}

std::string describe_unreachable_peer(const isthmus_backend_context& context, const isthmus_heap_block& shared) {
  for (int rank = 0; rank < context.size; ++rank)
    if (shared.peers[rank] == nullptr) return fmt::format("the memory of rank {} can't be mapped", rank);
  return "";
}

isthmus_status fail_unsupported(const isthmus_backend_context& context, const std::string& reason) {
  return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr, "%s",
                      reason.c_str());
}

isthmus_status create(const isthmus_backend_context* backend_context, void** state) {
  *state = nullptr;
  const isthmus_backend_context& context = *backend_context;
  rank_record own_record{};
  settings options;
  std::unique_ptr<copy_engine_state> created;
  votes<rank_record> all;
  const std::string problem = prepare(context, options, created, own_record);
  if (const isthmus_status status = agree_on(context, own_record, problem, all)) return status;
  if (const std::string shared = describe_shared_device(context, all, options.share_device); !shared.empty())
    return fail_unsupported(context, shared);

  isthmus_heap_block shared{};
  const std::uint64_t bytes =
      copy_engine::peer_memory::bytes_for(context.size == 1 ? 0 : options.staging_bytes);
  if (context.heap_allocate(context.runtime, bytes, &shared) != ISTHMUS_SUCCESS)
    return fail_unsupported(context, fmt::format("no shared block of {} bytes on these devices", bytes));
  if (const isthmus_status status = agree_on(context, own_record, describe_unreachable_peer(context, shared), all)) {
    context.heap_free(context.runtime, shared.id);
    return status;
  }
  created->open(shared);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (const char* text = all[rank].value.no_kernels_reason; *text != '\0')
      created->refuse_reductions(fmt::format("no kernel for reductions: rank {}: {}", rank, text));
  *state = created.release();
  return ISTHMUS_SUCCESS;
}

isthmus_backend make_table() {
  isthmus_backend table{};
  table.struct_bytes = sizeof table;
  table.magic = ISTHMUS_BACKEND_MAGIC;
  table.abi_version = ISTHMUS_BACKEND_ABI;
  table.name = "copy_engine";
  table.description = "copies by the devices' DMA engines between peers of one machine";
  table.capabilities = ISTHMUS_BACKEND_GRAPH_CAPTURE | ISTHMUS_BACKEND_RANK_ORDER;
  table.platforms = 1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_HIP | 1u << ISTHMUS_PLATFORM_LEVEL_ZERO;
  table.create = create;
  table.destroy = [](void* state) { delete static_cast<copy_engine_state*>(state); };
  table.supports = [](void* state, const isthmus_operation* operation, const char* algorithm) {
    return self(state).supports(*operation, algorithm);
  };
  table.algorithms = copy_engine::algorithm_names;
  table.enqueue = [](void* state, const isthmus_operation* operations, const char* const* algorithms,
                    std::size_t n) { return self(state).enqueue(operations, algorithms, n); };
  table.poll = [](void* state) { return self(state).poll(); };
  table.abort = [](void* state) { self(state).abort(); };
  table.synchronize = [](void* state) { return self(state).synchronize(); };
  table.version = [](void* state) { return self(state).version(); };
  return table;
}

}  // namespace

const isthmus_backend* copy_engine_backend() noexcept {
  static const isthmus_backend table = make_table();
  return &table;
}

}  // namespace isthmus
