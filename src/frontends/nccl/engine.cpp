// libisthmus_nccl_engine.so: the functions that the preloaded library calls in place of some of NCCL's.
#include <cstring>

#include "frontends/nccl/attach.hpp"
#include "frontends/nccl/collectives.hpp"
#include "frontends/nccl/exception_guard.hpp"
#include "frontends/nccl/groups.hpp"
#include "frontends/nccl/nccl_call_scope.hpp"

namespace isthmus::nccl_shim {
namespace {

nccl_functions& functions() {
  static nccl_functions instance;
  return instance;
}

// Returns false for an NCCL that is too old; the engine then handles no calls. Newer functions may be missing.
bool load(const engine_host& host) {
  nccl_functions& nccl = functions();
#define NCCL_LOAD(member, name, parameters) \
  nccl.member = reinterpret_cast<decltype(nccl.member)>(host.find_real(name));
  NCCL_FUNCTIONS(NCCL_LOAD)
#undef NCCL_LOAD
#define NCCL_COLLECTIVE(NAME, Function, shape)                         \
  nccl.collectives[ISTHMUS_##NAME] = host.find_real("nccl" #Function); \
  nccl.configured[ISTHMUS_##NAME] = host.find_real("nccl" #Function "Config");
#include "frontends/nccl/collectives.def"
  return nccl.get_unique_id != nullptr && nccl.comm_count != nullptr && nccl.comm_user_rank != nullptr &&
         nccl.comm_device != nullptr && nccl.group_start != nullptr && nccl.group_end != nullptr;
}

// ---- creation ----

int handle_unique_id(nccl_unique_id* id) {
  const int code = real_nccl().get_unique_id(id);
  if (code == nccl_success) embed_id(*id);
  return code;
}

// Attaches after NCCL has returned: immediately, or at the end of the group.
int attach_after_nccl(int code, const pending_communicator& pending) {
  if (is_in_group() && (code == nccl_success || code == nccl_in_progress)) {
    add_to_group(pending);
  } else if (code == nccl_success) {
    attach_all(&pending, 1);
  }
  return code;
}

int handle_init_rank_config(nccl_comm* handle, int size, nccl_unique_id id, int rank, nccl_config* config) {
  const pending_communicator pending = describe_init(handle, &id, config);
  return attach_after_nccl(real_nccl().comm_init_rank_config(handle, size, id, rank, config), pending);
}

int handle_init_rank(nccl_comm* handle, int size, nccl_unique_id id, int rank) {
  const pending_communicator pending = describe_init(handle, &id, nullptr);
  return attach_after_nccl(real_nccl().comm_init_rank(handle, size, id, rank), pending);
}

int handle_init_rank_scalable(nccl_comm* handle, int size, int rank, int id_count, nccl_unique_id* ids,
                              nccl_config* config) {
  const pending_communicator pending = describe_init(handle, id_count > 0 ? ids : nullptr, config);
  return attach_after_nccl(real_nccl().comm_init_rank_scalable(handle, size, rank, id_count, ids, config),
                           pending);
}

int handle_init_all(nccl_comm* handle, int n, const int* devices) {
  const int code = real_nccl().comm_init_all(handle, n, devices);
  if (code == nccl_success && !is_in_group()) attach_init_all(handle, n);
  return code;
}

int handle_split(nccl_comm comm, int color, int key, nccl_comm* handle, nccl_config* config) {
  const pending_communicator pending = describe_split(handle, comm, color, key, config);
  const int code = call_nccl([&] { return real_nccl().comm_split(comm, color, key, handle, config); });
  return attach_after_nccl(code, pending);
}

// ---- destruction ----

int handle_destroy(nccl_comm comm) {
  if (attached_communicator* const communicator = attached_communicator::find(comm)) communicator->release();
  return real_nccl().comm_destroy(comm);
}

// Programs also abort healthy communicators, one rank after the other. If the calls are complete, Isthmus does
// not abort, because peers may still be using the communicator.
int handle_abort(nccl_comm comm) {
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (communicator != nullptr && !communicator->wait_until_idle()) communicator->abort();
  if (communicator != nullptr) communicator->release();
  return real_nccl().comm_abort(comm);
}

int handle_revoke(nccl_comm comm, int flags) {
  if (attached_communicator* const communicator = attached_communicator::find(comm)) {
    communicator->detach();
    if (!communicator->wait_until_idle()) communicator->abort();
  }
  return call_nccl([&] { return real_nccl().comm_revoke(comm, flags); });
}

int handle_async_error(nccl_comm comm, int* error) {
  const int code = real_nccl().comm_get_async_error(comm, error);
  if (nccl_call_scope::is_active()) return code;
  attached_communicator* const communicator = attached_communicator::find(comm);
  if (code == nccl_success && error != nullptr && *error == nccl_success && communicator != nullptr)
    *error = communicator->async_error();
  return code;
}

// ---- function table ----

struct named_function {
  const char* name;
  any_function function;
  any_function real;  // NULL if this NCCL does not have the function
};

template <auto Function, typename Real>
named_function make_entry(const char* name, Real real) {
  return {name, entry_point_of<Function>(), reinterpret_cast<any_function>(real)};
}

any_function find(const char* name) {
  const nccl_functions& nccl = real_nccl();
  const named_function all[] = {
      make_entry<&handle_unique_id>("ncclGetUniqueId", nccl.get_unique_id),
      make_entry<&handle_init_rank>("ncclCommInitRank", nccl.comm_init_rank),
      make_entry<&handle_init_rank_config>("ncclCommInitRankConfig", nccl.comm_init_rank_config),
      make_entry<&handle_init_rank_scalable>("ncclCommInitRankScalable", nccl.comm_init_rank_scalable),
      make_entry<&handle_init_all>("ncclCommInitAll", nccl.comm_init_all),
      make_entry<&handle_split>("ncclCommSplit", nccl.comm_split),
      make_entry<&handle_destroy>("ncclCommDestroy", nccl.comm_destroy),
      make_entry<&handle_abort>("ncclCommAbort", nccl.comm_abort),
      make_entry<&handle_revoke>("ncclCommRevoke", nccl.comm_revoke),
      make_entry<&handle_async_error>("ncclCommGetAsyncError", nccl.comm_get_async_error),
      make_entry<&start_group>("ncclGroupStart", nccl.group_start),
      make_entry<&end_group>("ncclGroupEnd", nccl.group_end),
      make_entry<&simulate_group_end>("ncclGroupSimulateEnd", nccl.group_simulate_end),
  };
  for (const named_function& each : all)
    if (std::strcmp(each.name, name) == 0) return each.real == nullptr ? nullptr : each.function;
  return find_collective(name);
}

}  // namespace

const nccl_functions& real_nccl() { return functions(); }

}  // namespace isthmus::nccl_shim

extern "C" __attribute__((visibility("default"))) const isthmus::nccl_shim::engine_table*
isthmus_nccl_engine_v1(const isthmus::nccl_shim::engine_host* host) {
  using namespace isthmus::nccl_shim;
  static const engine_table table = {sizeof(engine_table), find};
  return host->struct_bytes == sizeof(engine_host) && load(*host) ? &table : nullptr;
}
