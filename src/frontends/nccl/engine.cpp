// libisthmus_nccl_engine.so: what the preloaded library calls in the place of some of NCCL's functions.
#include <cstring>

#include "frontends/nccl/attach.hpp"
#include "frontends/nccl/collectives.hpp"
#include "frontends/nccl/groups.hpp"
#include "frontends/nccl/guarded.hpp"
#include "frontends/nccl/inside_nccl.hpp"

namespace isthmus::nccl_shim {
namespace {

nccl_functions& functions() {
  static nccl_functions only;
  return only;
}

// Of a version that is too old the engine takes nothing. What came later may be missing.
bool load(const engine_host& host) {
  nccl_functions& nccl = functions();
#define NCCL_LOAD(member, name, parameters) \
  nccl.member = reinterpret_cast<decltype(nccl.member)>(host.real(name));
  NCCL_FUNCTIONS(NCCL_LOAD)
#undef NCCL_LOAD
#define NCCL_COLLECTIVE(NAME, Function, shape)                    \
  nccl.collectives[ISTHMUS_##NAME] = host.real("nccl" #Function); \
  nccl.configured[ISTHMUS_##NAME] = host.real("nccl" #Function "Config");
#include "frontends/nccl/collectives.def"
  return nccl.get_unique_id != nullptr && nccl.comm_count != nullptr && nccl.comm_user_rank != nullptr &&
         nccl.comm_device != nullptr && nccl.group_start != nullptr && nccl.group_end != nullptr;
}

// ---- creation --------------------------------------------------------------------------------------------

int handle_unique_id(nccl_unique_id* id) {
  const int code = real_nccl().get_unique_id(id);
  if (code == nccl_success) embed_id(*id);
  return code;
}

// After NCCL's own answer: at once, or at the end of the group.
int attach_after_nccl(int code, const pending_communicator& pending) {
  if (is_in_group() && (code == nccl_success || code == nccl_in_progress)) {
    add_to_group(pending);
  } else if (code == nccl_success) {
    attach_all(&pending, 1);
  }
  return code;
}

int take_init_rank_config(nccl_comm* made, int size, nccl_unique_id id, int rank, nccl_config* config) {
  const pending_communicator pending = pending_init(made, &id, config);
  return attach_after_nccl(real_nccl().comm_init_rank_config(made, size, id, rank, config), pending);
}

int take_init_rank(nccl_comm* made, int size, nccl_unique_id id, int rank) {
  const pending_communicator pending = pending_init(made, &id, nullptr);
  return attach_after_nccl(real_nccl().comm_init_rank(made, size, id, rank), pending);
}

int take_init_rank_scalable(nccl_comm* made, int size, int rank, int id_count, nccl_unique_id* ids,
                            nccl_config* config) {
  const pending_communicator pending = pending_init(made, id_count > 0 ? ids : nullptr, config);
  return attach_after_nccl(real_nccl().comm_init_rank_scalable(made, size, rank, id_count, ids, config), pending);
}

int take_init_all(nccl_comm* made, int n, const int* devices) {
  const int code = real_nccl().comm_init_all(made, n, devices);
  if (code == nccl_success && !is_in_group()) attach_init_all(made, n);
  return code;
}

int take_split(nccl_comm comm, int color, int key, nccl_comm* made, nccl_config* config) {
  const pending_communicator pending = pending_split(made, comm, color, key, config);
  const int code = call_nccl([&] { return real_nccl().comm_split(comm, color, key, made, config); });
  return attach_after_nccl(code, pending);
}

// ---- end -------------------------------------------------------------------------------------------------

int take_destroy(nccl_comm comm) {
  if (attached_communicator* const known = attached_communicator::find(comm)) known->release();
  return real_nccl().comm_destroy(comm);
}

// Programs also end healthy communicators so, one rank after the other: what is complete is not aborted,
// because the other ranks may still be at it.
int take_abort(nccl_comm comm) {
  attached_communicator* const known = attached_communicator::find(comm);
  if (known != nullptr && !known->wait_until_idle()) known->abort();
  if (known != nullptr) known->release();
  return real_nccl().comm_abort(comm);
}

int take_revoke(nccl_comm comm, int flags) {
  if (attached_communicator* const known = attached_communicator::find(comm)) {
    known->detach();
    if (!known->wait_until_idle()) known->abort();
  }
  return call_nccl([&] { return real_nccl().comm_revoke(comm, flags); });
}

int take_async_error(nccl_comm comm, int* error) {
  const int code = real_nccl().comm_get_async_error(comm, error);
  if (inside_nccl::is_so()) return code;
  attached_communicator* const known = attached_communicator::find(comm);
  if (code == nccl_success && error != nullptr && *error == nccl_success && known != nullptr)
    *error = known->async_error();
  return code;
}

// ---- the table ---------------------------------------------------------------------------------------------

struct named_function {
  const char* name;
  any_function function;
  any_function real;  // NULL: this NCCL has none
};

template <auto Function, typename Real>
named_function named(const char* name, Real real) {
  return {name, entry_of<Function>(), reinterpret_cast<any_function>(real)};
}

any_function find(const char* name) {
  const nccl_functions& nccl = real_nccl();
  const named_function all[] = {
      named<&handle_unique_id>("ncclGetUniqueId", nccl.get_unique_id),
      named<&take_init_rank>("ncclCommInitRank", nccl.comm_init_rank),
      named<&take_init_rank_config>("ncclCommInitRankConfig", nccl.comm_init_rank_config),
      named<&take_init_rank_scalable>("ncclCommInitRankScalable", nccl.comm_init_rank_scalable),
      named<&take_init_all>("ncclCommInitAll", nccl.comm_init_all),
      named<&take_split>("ncclCommSplit", nccl.comm_split),
      named<&take_destroy>("ncclCommDestroy", nccl.comm_destroy),
      named<&take_abort>("ncclCommAbort", nccl.comm_abort),
      named<&take_revoke>("ncclCommRevoke", nccl.comm_revoke),
      named<&take_async_error>("ncclCommGetAsyncError", nccl.comm_get_async_error),
      named<&start_group>("ncclGroupStart", nccl.group_start),
      named<&end_group>("ncclGroupEnd", nccl.group_end),
      named<&simulate_group_end>("ncclGroupSimulateEnd", nccl.group_simulate_end),
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
