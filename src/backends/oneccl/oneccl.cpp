// libisthmus_oneccl.so: the oneCCL plug-in for SYCL queues on Intel devices.
#include <memory>
#include <string>
#include <vector>

#include "base/location.hpp"
#include "oneccl_state.hpp"

namespace isthmus::oneccl {
namespace {

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  vote<probe_record> local_vote;
  std::string reason;
  oneccl_library* const library = oneccl_library::get(*context, reason);
  if (library != nullptr) {
    local_vote.value.version = library->version;
    if (context->rank == 0 && library->functions.get_unique_id(local_vote.value.id) != 0)
      reason = std::string("onecclGetUniqueId: ") + library->functions.get_last_error(nullptr);
  }
  votes<probe_record> all;
  if (const auto status = nccl_family::agree_on_probes(
          *context, ISTHMUS_HERE,
          "run pip install oneccl, or set backend.oneccl.library or ISTHMUS_ONECCL_LIBRARY to the file",
          local_vote, reason, all);
      status != ISTHMUS_SUCCESS)
    return status;
  auto new_state = std::make_unique<oneccl_state>(*context, *library);
  if (const auto status = new_state->connect(all); status != ISTHMUS_SUCCESS) return status;
  context->log(context->runtime, 1, "oneCCL %s from %s", library->version_text.c_str(), library->path.c_str());
  *state = new_state.release();
  return ISTHMUS_SUCCESS;
}

oneccl_state& as_state(void* state) { return *static_cast<oneccl_state*>(state); }

isthmus_backend make_backend() {
  isthmus_backend table{};
  table.struct_bytes = sizeof(table);
  table.magic = ISTHMUS_BACKEND_MAGIC;
  table.abi_version = ISTHMUS_BACKEND_ABI;
  table.name = "oneccl";
  table.description = "Intel's collective communication library on SYCL queues";
  table.capabilities = ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS | ISTHMUS_BACKEND_MULTI_NODE;
  table.platforms = 1u << ISTHMUS_PLATFORM_LEVEL_ZERO | 1u << ISTHMUS_PLATFORM_OPENCL;
  table.create = create;
  table.destroy = [](void* state) {
    const std::unique_ptr<oneccl_state> owned(&as_state(state));
    owned->release();
  };
  table.supports = [](void* state, const isthmus_operation* operation, int) {
    return as_state(state).supports(*operation);
  };
  table.enqueue = [](void* state, const isthmus_operation* operations, const int*, std::size_t n) {
    return as_state(state).enqueue(operations, n);
  };
  table.abort = [](void* state) { as_state(state).abort(); };
  table.synchronize = [](void* state) { return as_state(state).synchronize(); };
  table.version = [](void* state) { return as_state(state).version(); };
  return table;
}

}  // namespace
}  // namespace isthmus::oneccl

extern "C" __attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) {
  static const isthmus_backend table = isthmus::oneccl::make_backend();
  return &table;
}
