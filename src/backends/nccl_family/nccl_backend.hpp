// The backend for NCCL and RCCL. The traits supply names, versions and install locations.
#pragma once

#include <isthmus/backend.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nccl_state.hpp"

namespace isthmus::nccl_family {

template <typename Traits>
class nccl_backend {
 public:
  static const isthmus_backend* get() {
    static const isthmus_backend table = make_backend();
    return &table;
  }

 private:
  using state_type = nccl_state<Traits>;
  using library = native_library<Traits>;
  using probe_record = typename state_type::probe_record;
  using probe_votes = votes<probe_record>;

  // The open group of the calling thread.
  struct group_state {
    int depth = 0;
    std::vector<state_type*> members;
  };
  static group_state& current_group() {
    thread_local group_state group;
    return group;
  }
  // Number of open groups of all threads. While it is 0, a call does not need to look up its thread's group.
  static inline std::atomic<int> s_open_group_count{0};

  static isthmus_backend make_backend();
  static std::string probe_device(const isthmus_backend_context& context, library* lib, probe_record& record);
  static std::string create_unique_id(const library& lib, int ordinal, probe_record& record);
  static isthmus_status create(const isthmus_backend_context* context, void** state);
  static bool matches(const library& lib, native_comm split_comm, const isthmus_backend_context& context);
  static isthmus_status share_unique_id(const isthmus_backend_context& context, const library& lib,
                                        probe_votes& all);
  static isthmus_status confirm_connected(const isthmus_backend_context& context, isthmus_status local_status);
  static isthmus_status enqueue(void* state, const isthmus_operation* operations, const int*, std::size_t n);
  static isthmus_status group_start();
  static isthmus_status group_end();
  // Aborts a split communicator that has no operations yet.
  static void discard_split_state(void* split_comm) { library::current()->functions.comm_abort(split_comm); }
};

// Fills in this rank's probe. Returns "" if the rank can participate, otherwise the reason.
template <typename Traits>
std::string nccl_backend<Traits>::probe_device(const isthmus_backend_context& context, library* lib,
                                               probe_record& record) {
  if (context.device.platform != Traits::platform)
    return std::string(Traits::display_name) + " requires a device of platform " + Traits::device_prefix;
  const device_runtime& device = lib->device;
  const int ordinal = context.device.ordinal;
  int count = 0;
  if (const int error = device.get_device_count(&count); error != 0)
    return std::string("the ") + Traits::runtime_name + " found no device: " + device.get_error_string(error);
  if (ordinal < 0 || ordinal >= count)
    return "device " + std::to_string(ordinal) +
           " does not exist; number of devices on this machine: " + std::to_string(count);
  if (const int error = device.device_get_pci_bus_id(record.device, sizeof(record.device), ordinal); error != 0)
    return std::string("the device has no PCI bus id: ") + device.get_error_string(error);
  if (Traits::capability_attribute >= 0)
    device.device_get_attribute(&record.capability, Traits::capability_attribute, ordinal);
  record.version = lib->version;
  if (!parse_registration_mode(option_of(context, "registration")))
    return std::string("backend.") + Traits::name + ".registration must be off, buffers or windows";
  record.has_split_comm = context.split_state != nullptr && matches(*lib, context.split_state, context) ? 1 : 0;
  if (context.rank != 0 || record.has_split_comm != 0) return {};
  return create_unique_id(*lib, ordinal, record);
}

template <typename Traits>
std::string nccl_backend<Traits>::create_unique_id(const library& lib, int ordinal, probe_record& record) {
  const scoped_device guard(lib.device, ordinal);
  const int result = lib.functions.get_unique_id(record.id);
  return result == native_success
             ? ""
             : std::string(Traits::symbol_prefix) + "GetUniqueId: " + Traits::result_info_of(result).name;
}

// Isthmus and the library both order the ranks of a split by key, then by rank. This checks that they agree.
template <typename Traits>
bool nccl_backend<Traits>::matches(const library& lib, native_comm split_comm,
                                   const isthmus_backend_context& context) {
  int size = 0, rank = -1;
  return lib.functions.comm_count(split_comm, &size) == native_success && size == context.size &&
         lib.functions.comm_user_rank(split_comm, &rank) == native_success && rank == context.rank;
}

// If only some ranks have a split communicator, rank 0 may not have created a unique id yet.
template <typename Traits>
isthmus_status nccl_backend<Traits>::share_unique_id(const isthmus_backend_context& context, const library& lib,
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
template <typename Traits>
isthmus_status nccl_backend<Traits>::confirm_connected(const isthmus_backend_context& context,
                                                       isthmus_status local_status) {
  vote<> local_vote;
  if (local_status != ISTHMUS_SUCCESS)
    local_vote.refuse(ISTHMUS_ERROR_REMOTE, std::string("could not join ") + Traits::display_name,
                      "check the message of that rank", local_status);
  votes<> all;
  if (local_status == ISTHMUS_SUCCESS) return agree(context, ISTHMUS_HERE, local_vote, all);
  gather_votes(context, local_vote, all);
  return local_status;
}

template <typename Traits>
isthmus_status nccl_backend<Traits>::create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  vote<probe_record> local_vote;
  std::string reason;
  // Owned by this object until the backend state takes ownership.
  std::unique_ptr<void, void (*)(void*)> split_comm(context->split_state, discard_split_state);
  library* const lib = library::get(*context, reason);
  if (lib != nullptr) reason = probe_device(*context, lib, local_vote.value);
  probe_votes all;
  if (const isthmus_status status =
          agree_on_probes(*context, ISTHMUS_HERE, Traits::install_hint, local_vote, reason, all);
      status != ISTHMUS_SUCCESS)
    return status;

  const bool is_split =
      std::all_of(all.begin(), all.end(), [](auto& each) { return each.value.has_split_comm != 0; });
  if (!is_split) {
    split_comm.reset();
    if (const isthmus_status status = share_unique_id(*context, *lib, all); status != ISTHMUS_SUCCESS)
      return status;
  }
  auto new_state = std::make_unique<state_type>(*context, *lib,
                                                *parse_registration_mode(option_of(*context, "registration")));
  const isthmus_status result = confirm_connected(*context, new_state->connect(all, split_comm.release()));
  if (result != ISTHMUS_SUCCESS) {
    new_state->release();
    return result;
  }
  context->log(context->runtime, 1, "%s %s from %s%s", Traits::display_name, lib->version_text.c_str(),
               lib->path.c_str(), is_split ? ", split off the parent's communicator" : "");
  *state = new_state.release();
  return ISTHMUS_SUCCESS;
}

template <typename Traits>
isthmus_status nccl_backend<Traits>::enqueue(void* state, const isthmus_operation* operations, const int*,
                                             std::size_t n) {
  auto* const self = static_cast<state_type*>(state);
  const isthmus_status status = self->enqueue(operations, n);
  if (s_open_group_count.load(std::memory_order_relaxed) == 0) {
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

template <typename Traits>
isthmus_status nccl_backend<Traits>::group_start() {
  library* const lib = library::current();
  if (lib == nullptr) return ISTHMUS_ERROR_INVALID_USAGE;
  const int result = lib->functions.group_start();
  if (result != native_success) return Traits::result_info_of(result).status;
  s_open_group_count.fetch_add(1, std::memory_order_relaxed);
  ++current_group().depth;
  return ISTHMUS_SUCCESS;
}

template <typename Traits>
isthmus_status nccl_backend<Traits>::group_end() {
  group_state& group = current_group();
  if (group.depth == 0) return ISTHMUS_ERROR_INVALID_USAGE;
  const int result = library::current()->functions.group_end();
  s_open_group_count.fetch_sub(1, std::memory_order_relaxed);
  if (--group.depth > 0)
    return result == native_success ? ISTHMUS_SUCCESS : Traits::result_info_of(result).status;
  isthmus_status status = ISTHMUS_SUCCESS;
  for (state_type* member : std::exchange(group.members, {})) {
    const isthmus_status local_status = member->finish_group(result);
    if (status == ISTHMUS_SUCCESS) status = local_status;
  }
  return status;
}

template <typename Traits>
isthmus_backend nccl_backend<Traits>::make_backend() {
  isthmus_backend table{};
  table.struct_bytes = sizeof(table);
  table.magic = ISTHMUS_BACKEND_MAGIC;
  table.abi_version = ISTHMUS_BACKEND_ABI;
  table.name = Traits::name;
  table.description = Traits::description;
  table.capabilities = ISTHMUS_BACKEND_GRAPH_CAPTURE | ISTHMUS_BACKEND_MULTI_NODE;
  table.platforms = 1u << Traits::platform;
  table.create = create;
  table.destroy = [](void* state) {
    const std::unique_ptr<state_type> owner(static_cast<state_type*>(state));
    owner->release();
  };
  table.supports = [](void* state, const isthmus_operation* operation, int) {
    return static_cast<state_type*>(state)->supports(*operation);
  };
  table.enqueue = enqueue;
  table.group_start = group_start;
  table.group_end = group_end;
  table.poll = [](void* state) { return static_cast<state_type*>(state)->poll(); };
  table.abort = [](void* state) { static_cast<state_type*>(state)->abort(); };
  table.synchronize = [](void* state) { return static_cast<state_type*>(state)->synchronize(); };
  table.version = [](void* state) { return static_cast<state_type*>(state)->version(); };
  table.split = [](void* state, int color, int key) -> void* {
    return static_cast<state_type*>(state)->split(color, key);
  };
  table.discard_split_state = discard_split_state;
  table.register_block = [](void* state, const isthmus_heap_block* block) {
    static_cast<state_type*>(state)->register_block(*block);
  };
  table.unregister_block = [](void* state, const isthmus_heap_block* block) {
    static_cast<state_type*>(state)->unregister_block(*block);
  };
  return table;
}

}  // namespace isthmus::nccl_family
