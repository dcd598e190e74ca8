#include <sched.h>

#include <algorithm>
#include <isthmus/plugin.hpp>
#include <memory>

#include "backends/ucx/algorithms.hpp"
#include "base/backend_option.hpp"
#include "base/error.hpp"

namespace isthmus::ucx {
namespace {

constexpr const char* install_hint =
    "install libucx0 (apt) or libucx-cu13 (pip), or set backend.ucx.library or ISTHMUS_UCX_LIBRARY to the path "
    "of "
    "libucp.so.0";

std::uint64_t option_number(const isthmus_backend_context& context, const char* key,
                            std::uint64_t default_value, std::uint64_t min_value, std::uint64_t max_value) {
  return read_integer_option(context, "ucx", key, default_value, min_value, max_value);
}

std::string option_text(const isthmus_backend_context& context, const char* key) {
  const char* value = context.option(context.runtime, key);
  return value == nullptr ? std::string() : value;
}

// Returns true if this node has more ranks than cores available to them. A waiting rank must then yield
// its core immediately.
bool is_oversubscribed(const isthmus_backend_context& context) {
  cpu_set_t allowed;
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) < context.node_size;
}

ucx_settings read_settings(const isthmus_backend_context& context) {
  constexpr std::uint64_t line = 64;
  ucx_settings settings;
  settings.network = {option_text(context, "transports"), option_text(context, "interfaces"),
                      context.timeout_s};
  settings.chunk_bytes =
      (option_number(context, "chunk_bytes", 64 << 10, line, 1 << 30) + line - 1) / line * line;
  settings.window = option_number(context, "window", 4, 1, max_window);
  settings.spin_limit = is_oversubscribed(context) ? 0 : 64;
  return settings;
}

// This rank's vote in the first agreement: the length of its worker's address.
vote<std::uint64_t> open_state(const isthmus_backend_context& context, std::unique_ptr<ucx_state>& result,
                               std::vector<std::byte>& address) {
  vote<std::uint64_t> own_vote;
  try {
    std::string reason;
    const library* const ucx = library::get(context, reason);
    bool is_config_error = false;
    auto device = ucx == nullptr ? nullptr : device_access::make(context, reason);
    if (ucx != nullptr && reason.empty()) {
      result = std::make_unique<ucx_state>(context, *ucx, read_settings(context), std::move(device));
      reason = result->open(address, is_config_error);
    }
    own_vote.value = address.size();
    if (!reason.empty())
      own_vote.refuse(is_config_error ? ISTHMUS_ERROR_CONFIG : ISTHMUS_ERROR_UNSUPPORTED, reason,
                      is_config_error
                          ? "choose a transport or interface that every node has, or leave the option out"
                          : install_hint);
  } catch (const option_error& problem) {
    own_vote.refuse(ISTHMUS_ERROR_CONFIG, problem.what());
  } catch (const error& failure) {  // device failure
    const isthmus_error_info& info = failure.info();
    own_vote.refuse(info.status, info.message, info.hint, info.native_code);
  } catch (const std::exception& problem) {
    own_vote.refuse(ISTHMUS_ERROR_OUT_OF_MEMORY, problem.what());
  }
  return own_vote;
}

// Runs a local step and shares the outcome with all ranks.
template <typename Step>
isthmus_status run_and_agree(const isthmus_backend_context& context, const char* location, Step&& step) {
  vote<> own_vote;
  try {
    if (const std::string reason = step(); !reason.empty())
      own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, reason,
                      "make sure that all nodes share a network; select it with backend.ucx.interfaces");
  } catch (const std::exception& problem) {
    own_vote.refuse(ISTHMUS_ERROR_OUT_OF_MEMORY, problem.what());
  }
  votes<> all;
  return agree(context, location, own_vote, all);
}

isthmus_status create_connected_state(const isthmus_backend_context& context,
                                      std::unique_ptr<ucx_state>& result) {
  if (context.size > max_ranks)  // all ranks take this branch together
    return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr,
                        "a UCX message tag can address at most %d ranks", max_ranks);
  std::vector<std::byte> address;
  const auto own_vote = open_state(context, result, address);
  votes<std::uint64_t> lengths;
  if (const auto status = agree(context, ISTHMUS_HERE, own_vote, lengths)) return status;
  std::size_t stride = 0;
  for (const auto& each : lengths) stride = std::max<std::size_t>(stride, each.value);
  address.resize(stride);
  std::vector<std::byte> addresses(stride * static_cast<std::size_t>(context.size));
  if (const auto status = context.allgather(context.runtime, address.data(), addresses.data(), stride))
    return status;
  if (const auto status =
          run_and_agree(context, ISTHMUS_HERE, [&] { return result->connect(addresses, stride); }))
    return status;
  return run_and_agree(context, ISTHMUS_HERE, [&] { return result->verify_connections(); });
}

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  std::unique_ptr<ucx_state> new_state;
  if (const auto status = create_connected_state(*context, new_state)) return status;
  context->log(context->runtime, 1, "UCX %s", new_state->version());
  *state = new_state.release();
  return ISTHMUS_SUCCESS;
}

ucx_state& state_of(void* state) { return *static_cast<ucx_state*>(state); }

// The result is equal on all ranks, because all ranks are on one platform.
const char* supports(void* state, const isthmus_operation* operation, int algorithm) {
  if (state_of(state).is_on_devices() && row_of(operation->collective).is_reduction)
    return "ucx reduces in host memory only; use hierarchical for reductions on devices";
  return unsupported_reason(*operation, algorithm, state_of(state).size(),
                            state_of(state).settings().chunk_bytes);
}

isthmus_backend make_backend() {
  isthmus_backend backend{};
  backend.struct_bytes = sizeof backend;
  backend.magic = ISTHMUS_BACKEND_MAGIC;
  backend.abi_version = ISTHMUS_BACKEND_ABI;
  backend.name = "ucx";
  backend.description =
      "collectives over UCX (TCP, InfiniBand, shared memory), also on device memory that UCX can access";
  backend.capabilities = ISTHMUS_BACKEND_BLOCKING | ISTHMUS_BACKEND_MULTI_NODE | ISTHMUS_BACKEND_LAST_RESORT |
                         ISTHMUS_BACKEND_RANK_ORDER;
  backend.platforms = 1u << ISTHMUS_PLATFORM_HOST | 1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_HIP;
  backend.create = create;
  backend.destroy = [](void* state) { delete &state_of(state); };
  backend.supports = supports;
  backend.algorithms = algorithm_names;
  backend.enqueue = [](void* state, const isthmus_operation* operations, const int* algorithms, std::size_t n) {
    return state_of(state).enqueue(operations, algorithms, n);
  };
  backend.abort = [](void* state) { state_of(state).abort(); };
  backend.version = [](void* state) { return state_of(state).version(); };
  return backend;
}

}  // namespace
}  // namespace isthmus::ucx

const isthmus_backend* isthmus::ucx_backend() noexcept {
  static const isthmus_backend backend = ucx::make_backend();
  return &backend;
}
