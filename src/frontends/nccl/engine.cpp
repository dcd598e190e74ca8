// libisthmus_nccl_engine.so: the functions that the preloaded library calls in place of some of NCCL's.
#include "frontends/nccl/engine.hpp"

#include <cstring>
#include <string>

namespace isthmus::nccl_shim {
namespace {

native_functions& functions() {
  static native_functions instance;
  return instance;
}

// Returns false for an NCCL that is too old; the engine then handles no calls. Newer functions may be missing.
bool load(const engine_host& host) {
  native_functions& nccl = functions();
  nccl.load("nccl", true, [&](const std::string& name) { return host.find_real(name.c_str()); });
  return nccl.get_unique_id != nullptr && nccl.comm_count != nullptr && nccl.comm_user_rank != nullptr &&
         nccl.comm_device != nullptr && nccl.group_start != nullptr && nccl.group_end != nullptr;
}

// ---- creation ----

int handle_unique_id(native_unique_id* id) {
  const int code = real_nccl().get_unique_id(id);
  if (code == native_success) embed_id(*id);
  return code;
}

// Attaches after NCCL has returned: immediately, or at the end of the group.
int attach_after_nccl(int code, pending_communicator pending) {
  if (code != native_success && code != native_in_progress) return code;
  if (code == native_in_progress) pending.is_blocking = false;  // NCCL_COMM_BLOCKING=0
  if (is_in_group())
    add_to_group(pending);
  else
    attach_all(&pending, 1);
  return code;
}

int handle_init_rank_config(native_comm* handle, int size, native_unique_id id, int rank,
                            native_config* config) {
  const pending_communicator pending = describe_init(handle, &id, config);
  return attach_after_nccl(real_nccl().comm_init_rank_config(handle, size, id, rank, config), pending);
}

int handle_init_rank(native_comm* handle, int size, native_unique_id id, int rank) {
  const pending_communicator pending = describe_init(handle, &id, nullptr);
  return attach_after_nccl(real_nccl().comm_init_rank(handle, size, id, rank), pending);
}

int handle_init_rank_scalable(native_comm* handle, int size, int rank, int id_count, native_unique_id* ids,
                              native_config* config) {
  const pending_communicator pending = describe_init(handle, id_count > 0 ? ids : nullptr, config);
  return attach_after_nccl(real_nccl().comm_init_rank_scalable(handle, size, rank, id_count, ids, config),
                           pending);
}

int handle_init_all(native_comm* handle, int n, const int* devices) {
  const int code = real_nccl().comm_init_all(handle, n, devices);
  if (code == native_success && !is_in_group()) attach_init_all(handle, n);
  return code;
}

int handle_split(native_comm comm, int color, int key, native_comm* handle, native_config* config) {
  const pending_communicator pending = describe_split(handle, comm, color, key, config);
  const int code = call_nccl([&] { return real_nccl().comm_split(comm, color, key, handle, config); });
  return attach_after_nccl(code, pending);
}

// ---- destruction ----

int handle_destroy(native_comm comm) {
  if (attached_communicator* const communicator = attached_communicator::find(comm)) communicator->release();
  return real_nccl().comm_destroy(comm);
}

// Programs also abort healthy communicators, one rank after the other. If the calls are complete, Isthmus does
// not abort, because peers may still be using the communicator.
int handle_abort(native_comm comm) {
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator != nullptr && !communicator->wait_until_idle()) communicator->abort();
  if (communicator != nullptr) communicator->release();
  return real_nccl().comm_abort(comm);
}

int handle_revoke(native_comm comm, int flags) {
  if (attached_communicator* const communicator = attached_communicator::find(comm)) {
    communicator->detach();
    if (!communicator->wait_until_idle()) communicator->abort();
  }
  return call_nccl([&] { return real_nccl().comm_revoke(comm, flags); });
}

int handle_async_error(native_comm comm, int* error) {
  const int code = real_nccl().comm_get_async_error(comm, error);
  if (nccl_call_scope::is_active()) return code;
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (code == native_success && error != nullptr && *error == native_success && communicator != nullptr)
    *error = communicator->async_error();
  return code;
}

// ---- function table ----

any_function find(const char* name) {
#define NCCL_FIND(Name, member, handler) \
  if (std::strcmp(name, "nccl" #Name) == 0) return replacement_of<&handler>(real_nccl().member);
  NCCL_HANDLED_FUNCTIONS(NCCL_FIND)
#undef NCCL_FIND
  return find_collective(name);
}

}  // namespace

const native_functions& real_nccl() { return functions(); }

}  // namespace isthmus::nccl_shim

extern "C" __attribute__((visibility("default"))) const isthmus::nccl_shim::engine_table*
isthmus_nccl_engine_v1(const isthmus::nccl_shim::engine_host* host) {
  using namespace isthmus::nccl_shim;
  static const engine_table table = {sizeof(engine_table), find};
  return host->struct_bytes == sizeof(engine_host) && load(*host) ? &table : nullptr;
}
