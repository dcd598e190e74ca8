// The functions of the backend for NCCL and RCCL.
#include <isthmus/backend.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/nccl_family/nccl_state.hpp"
#include "base/location.hpp"

namespace isthmus::nccl_family {
namespace {

using probe_record = nccl_state::probe_record;
using probe_votes = votes<probe_record>;

// The open group of the calling thread.
struct group_state {
  int depth = 0;
  std::vector<nccl_state*> members;
};
group_state& current_group() {
  thread_local group_state group;
  return group;
}
// Number of open groups of all threads. While it is 0, a call does not need to look up its thread's group.
std::atomic<int> open_group_count{0};

// Aborts a split communicator that has no operations yet.
void discard_split_state(void* split_comm) { native_library::current()->functions.comm_abort(split_comm); }

std::string create_unique_id(const native_library& lib, int ordinal, probe_record& record) {
  const scoped_device guard(lib.device, ordinal);
  const int result = lib.functions.get_unique_id(record.id);
  return result == native_success
             ? ""
             : std::string(symbol_prefix) + "GetUniqueId: " + nccl_result_info(result).name;
}

// Isthmus and the library both order the ranks of a split by key, then by rank. This checks that they agree.
bool matches(const native_library& lib, native_comm split_comm, const isthmus_backend_context& context) {
  int size = 0, rank = -1;
  return lib.functions.comm_count(split_comm, &size) == native_success && size == context.size &&
         lib.functions.comm_user_rank(split_comm, &rank) == native_success && rank == context.rank;
}

// Fills in this rank's probe. Returns "" if the rank can participate, otherwise the reason.
std::string probe_device(const isthmus_backend_context& context, native_library* lib, probe_record& record) {
  if (context.device.platform != plugin_traits.platform)
    return std::string(plugin_traits.display_name) + " requires a device of platform " +
           plugin_traits.device_prefix;
  const device_runtime& device = lib->device;
  const int ordinal = context.device.ordinal;
  int count = 0;
  if (const int error = device.get_device_count(&count); error != 0)
    return std::string("the ") + plugin_traits.runtime_name +
           " found no device: " + device.get_error_string(error);
  if (ordinal < 0 || ordinal >= count)
    return "device " + std::to_string(ordinal) +
           " does not exist; number of devices on this machine: " + std::to_string(count);
  if (const int error = device.device_get_pci_bus_id(record.device, sizeof(record.device), ordinal); error != 0)
    return std::string("the device has no PCI bus id: ") + device.get_error_string(error);
  if (plugin_traits.capability_attribute >= 0)
    device.device_get_attribute(&record.capability, plugin_traits.capability_attribute, ordinal);
  record.version = lib->version;
  if (!parse_registration_mode(option_of(context, "registration")))
    return std::string("backend.") + plugin_traits.name + ".registration must be off, buffers or windows";
  record.has_split_comm = context.split_state != nullptr && matches(*lib, context.split_state, context) ? 1 : 0;
  if (context.rank != 0 || record.has_split_comm != 0) return {};
  return create_unique_id(*lib, ordinal, record);
}

// If only some ranks have a split communicator, rank 0 may not have created a unique id yet.
isthmus_status share_unique_id(const isthmus_backend_context& context, const native_library& lib,
                               probe_votes& all) {
  if (all[0].value.has_split_comm == 0) return ISTHMUS_SUCCESS;
  vote<probe_record> local_vote = all[static_cast<std::size_t>(context.rank)];
  if (const std::string reason =
          context.rank == 0 ? create_unique_id(lib, context.device.ordinal, local_vote.value) : "";
      !reason.empty())
    local_vote.refuse(ISTHMUS_ERROR_BACKEND, reason);
  return agree(context, ISTHMUS_HERE, local_vote, all);
}

// Collective. A failed rank has reported its own failure. The other ranks get an error that names this rank.
isthmus_status confirm_connected(const isthmus_backend_context& context, isthmus_status local_status) {
  vote<> local_vote;
  if (local_status != ISTHMUS_SUCCESS)
    local_vote.refuse(ISTHMUS_ERROR_REMOTE, std::string("could not join ") + plugin_traits.display_name,
                      "check the message of that rank", local_status);
  votes<> all;
  if (local_status == ISTHMUS_SUCCESS) return agree(context, ISTHMUS_HERE, local_vote, all);
  gather_votes(context, local_vote, all);
  return local_status;
}

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  vote<probe_record> local_vote;
  std::string reason;
  // Owned by this object until the backend state takes ownership.
  std::unique_ptr<void, void (*)(void*)> split_comm(context->split_state, discard_split_state);
  native_library* const lib = native_library::get(*context, reason);
  if (lib != nullptr) reason = probe_device(*context, lib, local_vote.value);
  probe_votes all;
  if (const isthmus_status status =
          agree_on_probes(*context, ISTHMUS_HERE, plugin_traits.install_hint, local_vote, reason, all);
      status != ISTHMUS_SUCCESS)
    return status;

  const bool is_split =
      std::all_of(all.begin(), all.end(), [](auto& each) { return each.value.has_split_comm != 0; });
  if (!is_split) {
    split_comm.reset();
    if (const isthmus_status status = share_unique_id(*context, *lib, all); status != ISTHMUS_SUCCESS)
      return status;
  }
  auto new_state = std::make_unique<nccl_state>(*context, *lib,
                                                *parse_registration_mode(option_of(*context, "registration")));
  const isthmus_status result = confirm_connected(*context, new_state->connect(all, split_comm.release()));
  if (result != ISTHMUS_SUCCESS) {
    new_state->release();
    return result;
  }
  context->log(context->runtime, 1, "%s %s from %s%s", plugin_traits.display_name, lib->version_text.c_str(),
               lib->path.c_str(), is_split ? ", split off the parent's communicator" : "");
  *state = new_state.release();
  return ISTHMUS_SUCCESS;
}

isthmus_status enqueue(void* state, const isthmus_operation* operations, const int*, std::size_t n) {
  auto* const self = static_cast<nccl_state*>(state);
  const isthmus_status status = self->enqueue(operations, n);
  if (open_group_count.load(std::memory_order_relaxed) == 0) {
    self->after_launch();
    return status;
  }
  group_state& group = current_group();
  if (group.depth == 0)
    self->after_launch();
  else if (std::find(group.members.begin(), group.members.end(), self) == group.members.end())
    group.members.push_back(self);
  return status;
}

isthmus_status group_start() {
  native_library* const lib = native_library::current();
  if (lib == nullptr) return ISTHMUS_ERROR_INVALID_USAGE;
  const int result = lib->functions.group_start();
  if (result != native_success) return nccl_result_info(result).status;
  open_group_count.fetch_add(1, std::memory_order_relaxed);
  ++current_group().depth;
  return ISTHMUS_SUCCESS;
}

isthmus_status group_end() {
  group_state& group = current_group();
  if (group.depth == 0) return ISTHMUS_ERROR_INVALID_USAGE;
  const int result = native_library::current()->functions.group_end();
  open_group_count.fetch_sub(1, std::memory_order_relaxed);
  if (--group.depth > 0) return result == native_success ? ISTHMUS_SUCCESS : nccl_result_info(result).status;
  isthmus_status status = ISTHMUS_SUCCESS;
  for (nccl_state* member : std::exchange(group.members, {})) {
    const isthmus_status local_status = member->finish_group(result);
    if (status == ISTHMUS_SUCCESS) status = local_status;
  }
  return status;
}

isthmus_backend make_backend() {
  isthmus_backend table{};
  table.struct_bytes = sizeof(table);
  table.magic = ISTHMUS_BACKEND_MAGIC;
  table.abi_version = ISTHMUS_BACKEND_ABI;
  table.name = plugin_traits.name;
  table.description = plugin_traits.description;
  table.capabilities = ISTHMUS_BACKEND_GRAPH_CAPTURE | ISTHMUS_BACKEND_MULTI_NODE | ISTHMUS_BACKEND_ROUNDS_ONCE;
  table.platforms = 1u << plugin_traits.platform;
  table.create = create;
  table.destroy = [](void* state) {
    const std::unique_ptr<nccl_state> owner(static_cast<nccl_state*>(state));
    owner->release();
  };
  table.supports = [](void* state, const isthmus_operation* operation, int) {
    return static_cast<nccl_state*>(state)->supports(*operation);
  };
  table.enqueue = enqueue;
  table.group_start = group_start;
  table.group_end = group_end;
  table.poll = [](void* state) { return static_cast<nccl_state*>(state)->poll(); };
  table.abort = [](void* state) { static_cast<nccl_state*>(state)->abort(); };
  table.synchronize = [](void* state) { return static_cast<nccl_state*>(state)->synchronize(); };
  table.version = [](void* state) { return static_cast<nccl_state*>(state)->version(); };
  table.split = [](void* state, int color, int key) -> void* {
    return static_cast<nccl_state*>(state)->split(color, key);
  };
  table.discard_split_state = discard_split_state;
  table.register_block = [](void* state, const isthmus_heap_block* block) {
    static_cast<nccl_state*>(state)->register_block(*block);
  };
  table.unregister_block = [](void* state, const isthmus_heap_block* block) {
    static_cast<nccl_state*>(state)->unregister_block(*block);
  };
  return table;
}

}  // namespace
}  // namespace isthmus::nccl_family

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  static const isthmus_backend table = isthmus::nccl_family::make_backend();
  return &table;
}
