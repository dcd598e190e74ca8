
#include <fmt/format.h>

#include <charconv>
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

// ---- options ------------------------------------------------------------------------------------------

template <typename Number>
std::string read_number(const isthmus_backend_context& context, const char* key, Number max_value,
                        Number& result, Number min_value = 0) {
  const char* text = context.option(context.runtime, key);
  if (text == nullptr) return "";
  const char* end = text + std::strlen(text);
  const auto [rest, problem] = std::from_chars(text, end, result);
  if (problem == std::errc{} && rest == end && result >= min_value && result <= max_value) return "";
  return fmt::format("option backend.copy_engine.{} = \"{}\" must be an integer from {} to {}", key, text,
                     min_value, max_value);
}

// Returns the first problem, or "". Missing options get the built-in defaults (selection/defaults.toml) or
// those of the platform.
std::string read_settings(const isthmus_backend_context& context, settings& result) {
  constexpr std::uint64_t max_bytes = std::uint64_t{1} << 40;
  std::string problem = read_number(context, "staging_bytes", max_bytes, result.staging_bytes);
  if (problem.empty()) problem = read_number(context, "batch_bytes", max_bytes, result.batch_bytes);
  // With separate links to the peers (xGMI, Xe Link), one concurrent copy per link is needed. With an NVLink
  // switch, one copy saturates the port.
  const bool has_switch = context.device.platform == ISTHMUS_PLATFORM_CUDA;
  result.streams = has_switch ? 1 : 0;
  // With a switch, ranks that start at the same time also stay in lockstep: each port has one sender
  // and one receiver.
  result.wait_all_bytes = has_switch ? max_bytes : std::uint64_t{1} << 20;
  if (problem.empty()) problem = read_number(context, "streams", 64, result.streams);
  if (problem.empty()) problem = read_number(context, "wait_all_bytes", max_bytes, result.wait_all_bytes);
  if (problem.empty()) problem = read_number(context, "reduction_blocks", 65535, result.reduction_blocks, 1);
  if (problem.empty()) problem = read_flag(context, "share_device", result.can_share_device);
  return problem;
}

// ---- creation -----------------------------------------------------------------------------------------

// Exchanged between the ranks before they share memory. Trivially copyable.
struct rank_support {
  signal_block_address signals;
  char bus_id[32];
  char missing_kernels_reason[200];  // why this rank does not support reductions, or ""
};

copy_engine_state& self(void* state) { return *static_cast<copy_engine_state*>(state); }

// Without a kernel compiler, the backend works but does not support reductions.
void find_compiler(const isthmus_backend_context& context, device_driver& driver, copy_engine_state& created,
                   rank_support& own_record) {
  const bool is_cuda = context.device.platform == ISTHMUS_PLATFORM_CUDA;
  const char* option = context.option(context.runtime, is_cuda ? "nvrtc_library" : "hiprtc_library");
  std::string reason;
  if (kernel_compiler* compiler = kernel_compiler::get(context.device.platform, driver, option, reason))
    created.set_compiler(*compiler);
  else
    copy_text(own_record.missing_kernels_reason, sizeof own_record.missing_kernels_reason, reason);
}

// Performs the local part of the setup. Returns the problem, or "".
std::string prepare(const isthmus_backend_context& context, settings& options,
                    std::unique_ptr<copy_engine_state>& created, signal_memory& signals,
                    rank_support& own_record) {
  if (context.device.platform == ISTHMUS_PLATFORM_LEVEL_ZERO)
    return "streams of this platform are SYCL queues, which the core cannot convert to command lists";
  if (context.node_size != context.size) return "the ranks are on several nodes";
  if (context.size > copy_engine::max_ranks)
    return fmt::format("{} ranks, but at most {} are supported", context.size, copy_engine::max_ranks);
  if (context.heap_allocate == nullptr || context.heap_free == nullptr)
    return "the runtime provides no symmetric heap to backends on this platform";
  std::string problem = read_settings(context, options);
  if (!problem.empty()) return problem;
  device_driver* driver = device_driver::get(context.device.platform, problem);
  if (driver == nullptr) return problem;
  try {
    if (context.device.ordinal < 0 || context.device.ordinal >= driver->device_count())
      return fmt::format("device {} does not exist; there are {}", context.device.ordinal,
                         driver->device_count());
    copy_text(own_record.bus_id, sizeof own_record.bus_id, driver->bus_id(context.device.ordinal));
    created = std::make_unique<copy_engine_state>(context, *driver, options);
    find_compiler(context, *driver, *created, own_record);
    signals = signal_memory(*driver, context.size, copy_engine::peer_memory::flags.bytes());
    own_record.signals = signals.address();
  } catch (const error& exception) {
    return exception.what();
  }
  return "";
}

// Collective. Returns SUCCESS if no rank has a problem, otherwise UNSUPPORTED on all ranks.
isthmus_status agree_on_support(const isthmus_backend_context& context, const rank_support& own_record,
                                const std::string& problem, votes<rank_support>& all) {
  vote<rank_support> own;
  own.value = own_record;
  if (!problem.empty()) own.refuse(ISTHMUS_ERROR_UNSUPPORTED, problem);
  return agree(context, ISTHMUS_HERE, own, all);
}

// Streams of one device may share a queue. A waiting rank would then block the rank that it waits for. Streams
// of different processes do not share queues.
std::string describe_shared_device(const isthmus_backend_context& context, const votes<rank_support>& all,
                                   bool may_share) {
  for (std::size_t first = 0; first < all.size(); ++first)
    for (std::size_t second = first + 1; second < all.size(); ++second)
      if (std::strcmp(all[first].value.bus_id, all[second].value.bus_id) == 0 &&
          (!may_share || context.process_of[first] == context.process_of[second]))
        return fmt::format("ranks {} and {} share the device {}; copy engines need one device per rank", first,
                           second, all[first].value.bus_id);
  return "";
}

// Returns the problem, or "".
std::string open_peers(const isthmus_backend_context& context, const votes<rank_support>& all,
                       signal_memory& signals, const isthmus_heap_block& staging) {
  std::vector<signal_block_address> addresses;
  for (const vote<rank_support>& each : all) addresses.push_back(each.value.signals);
  try {
    signals.open(addresses);
  } catch (const error& exception) {
    return fmt::format("the signals of the ranks cannot be mapped: {}", exception.what());
  }
  for (int rank = 0; rank < context.size; ++rank)
    if (staging.peers[rank] == nullptr) return fmt::format("the memory of rank {} cannot be mapped", rank);
  return "";
}

isthmus_status fail_unsupported(const isthmus_backend_context& context, const std::string& reason) {
  return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr, "%s",
                      reason.c_str());
}

isthmus_status create(const isthmus_backend_context* backend_context, void** state) {
  *state = nullptr;
  const isthmus_backend_context& context = *backend_context;
  rank_support own_record{};
  settings options;
  std::unique_ptr<copy_engine_state> created;
  signal_memory signals;
  votes<rank_support> all;
  const std::string problem = prepare(context, options, created, signals, own_record);
  if (const isthmus_status status = agree_on_support(context, own_record, problem, all)) {
    if (status == ISTHMUS_ERROR_UNSUPPORTED) signals.discard();  // so does every rank
    return status;
  }
  if (const std::string shared = describe_shared_device(context, all, options.can_share_device);
      !shared.empty()) {
    signals.discard();
    return fail_unsupported(context, shared);
  }

  isthmus_heap_block staging{};
  const std::uint64_t bytes =
      copy_engine::peer_memory::bytes_for(context.size == 1 ? 0 : options.staging_bytes);
  if (context.heap_allocate(context.runtime, bytes, &staging) != ISTHMUS_SUCCESS)
    return fail_unsupported(context,
                            fmt::format("cannot allocate a shared block of {} bytes on these devices", bytes));
  const std::string unreachable = open_peers(context, all, signals, staging);
  if (const isthmus_status status = agree_on_support(context, own_record, unreachable, all)) {
    context.heap_free(context.runtime, staging.id);
    return status;
  }
  created->open(std::move(signals), staging);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (const char* text = all[rank].value.missing_kernels_reason; *text != '\0')
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
  table.description = "copies by the devices' DMA engines between peers of one node";
  table.capabilities = ISTHMUS_BACKEND_GRAPH_CAPTURE | ISTHMUS_BACKEND_RANK_ORDER;
  table.platforms =
      1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_HIP | 1u << ISTHMUS_PLATFORM_LEVEL_ZERO;
  table.create = create;
  table.destroy = [](void* state) { delete static_cast<copy_engine_state*>(state); };
  table.supports = [](void* state, const isthmus_operation* operation, int algorithm) {
    return self(state).supports(*operation, algorithm);
  };
  table.algorithms = copy_engine::algorithm_names;
  table.enqueue = [](void* state, const isthmus_operation* operations, const int* algorithms, std::size_t n) {
    return self(state).enqueue(operations, algorithms, n);
  };
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
