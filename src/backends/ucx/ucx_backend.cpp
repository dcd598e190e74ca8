#include "backends/ucx/ucx_backend.hpp"

#include <sched.h>

#include <algorithm>
#include <isthmus/plugin.hpp>
#include <memory>

#include "backends/ucx/algorithms.hpp"
#include "backends/ucx/ucx_state.hpp"
#include "base/backend_option.hpp"
#include "base/error.hpp"

namespace isthmus::ucx {
namespace {

constexpr const char* install_hint =
    "apt-get install libucx0, or pip install libucx-cu13; or name the file in backend.ucx.library or "
    "ISTHMUS_UCX_LIBRARY";

std::uint64_t option_number(const isthmus_backend_context& context, const char* key, std::uint64_t otherwise,
                     std::uint64_t least, std::uint64_t most) {
  return read_integer_option(context, "ucx", key, otherwise, least, most);
}

std::string option_text(const isthmus_backend_context& context, const char* key) {
  const char* value = context.option(context.runtime, key);
  return value == nullptr ? std::string() : value;
}

// More ranks on this machine than cores that they may run on: then whoever waits must give up its core at once.
bool is_oversubscribed(const isthmus_backend_context& context) {
  cpu_set_t mine;
  return ::sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) < context.node_size;
}

ucx_settings read_settings(const isthmus_backend_context& context) {
  constexpr std::uint64_t line = 64;
  ucx_settings settings;
  settings.network = {option_text(context, "transports"), option_text(context, "interfaces"), context.timeout_s};
  settings.chunk_bytes = (option_number(context, "chunk_bytes", 64 << 10, line, 1 << 30) + line - 1) / line * line;
  settings.window = option_number(context, "window", 4, 1, max_window);
  settings.spin_limit = is_oversubscribed(context) ? 0 : 64;
  return settings;
}

// This rank's part of the first agreement: its worker's address.
vote<std::uint64_t> open_state(const isthmus_backend_context& context, std::unique_ptr<ucx_state>& made,
                                 std::vector<std::byte>& address) {
  vote<std::uint64_t> mine;
  try {
    std::string reason;
    const library* const ucx = library::get(context, reason);
    bool is_config_error = false;
    auto device = ucx == nullptr ? nullptr : device_access::make(context, reason);
    if (ucx != nullptr && reason.empty()) {
      made = std::make_unique<ucx_state>(context, *ucx, read_settings(context), std::move(device));
      reason = made->open(address, is_config_error);
    }
    mine.value = address.size();
    if (!reason.empty())
      mine.refuse(is_config_error ? ISTHMUS_ERROR_CONFIG : ISTHMUS_ERROR_UNSUPPORTED, reason,
                  is_config_error ? "name what every rank's machine has, or leave the option out" : install_hint);
  } catch (const option_error& problem) {
    mine.refuse(ISTHMUS_ERROR_CONFIG, problem.what());
  } catch (const error& failure) {  // of the device
    const isthmus_error_info& told = failure.info();
    mine.refuse(told.status, told.message, told.hint, told.native_code);
  } catch (const std::exception& problem) {
    mine.refuse(ISTHMUS_ERROR_OUT_OF_MEMORY, problem.what());
  }
  return mine;
}

// A step of this rank alone, of which all hear.
template <typename Step>
isthmus_status run_and_agree(const isthmus_backend_context& context, const char* location, Step&& step) {
  vote<> mine;
  try {
    if (const std::string reason = step(); !reason.empty())
      mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, reason,
                  "do all machines reach each other on the same network? backend.ucx.interfaces chooses it");
  } catch (const std::exception& problem) {
    mine.refuse(ISTHMUS_ERROR_OUT_OF_MEMORY, problem.what());
  }
  votes<> all;
  return agree(context, location, mine, all);
}

isthmus_status make(const isthmus_backend_context& context, std::unique_ptr<ucx_state>& made) {
  if (context.size > max_ranks)  // equal on all ranks
    return context.fail(context.runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, ISTHMUS_HERE, nullptr,
                        "at most %d ranks fit into UCX's tags", max_ranks);
  std::vector<std::byte> address;
  const auto mine = open_state(context, made, address);
  votes<std::uint64_t> lengths;
  if (const auto status = agree(context, ISTHMUS_HERE, mine, lengths)) return status;
  std::size_t stride = 0;
  for (const auto& each : lengths) stride = std::max<std::size_t>(stride, each.value);
  address.resize(stride);
  std::vector<std::byte> addresses(stride * static_cast<std::size_t>(context.size));
  if (const auto status = context.allgather(context.runtime, address.data(), addresses.data(), stride))
    return status;
  if (const auto status = run_and_agree(context, ISTHMUS_HERE, [&] { return made->connect(addresses, stride); }))
    return status;
  return run_and_agree(context, ISTHMUS_HERE, [&] { return made->verify_connections(); });
}

isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  std::unique_ptr<ucx_state> made;
  if (const auto status = make(*context, made)) return status;
  context->log(context->runtime, 1, "UCX %s", made->version());
  *state = made.release();
  return ISTHMUS_SUCCESS;
}

ucx_state& of(void* state) { return *static_cast<ucx_state*>(state); }

// Depends on what is equal on all ranks: all are on one platform.
const char* supports(void* state, const isthmus_operation* operation, const char* name) {
  if (of(state).is_on_devices() && row_of(operation->collective).is_reduction)
    return "ucx sums in host memory: give sums of devices to islands";
  return unsupported_reason(*operation, name, of(state).size(), of(state).settings().chunk_bytes);
}

isthmus_backend make_backend() {
  isthmus_backend backend{};
  backend.struct_bytes = sizeof backend;
  backend.magic = ISTHMUS_BACKEND_MAGIC;
  backend.abi_version = ISTHMUS_BACKEND_ABI;
  backend.name = "ucx";
  backend.description =
      "host buffers between machines over UCX: TCP, InfiniBand, shared memory; devices' where it reaches them";
  backend.capabilities = ISTHMUS_BACKEND_BLOCKING | ISTHMUS_BACKEND_MULTI_NODE | ISTHMUS_BACKEND_LAST_RESORT |
                         ISTHMUS_BACKEND_RANK_ORDER;
  backend.platforms = 1u << ISTHMUS_PLATFORM_HOST | 1u << ISTHMUS_PLATFORM_CUDA | 1u << ISTHMUS_PLATFORM_HIP;
  backend.create = create;
  backend.destroy = [](void* state) { delete &of(state); };
  backend.supports = supports;
  backend.algorithms = algorithm_names;
  backend.enqueue = [](void* state, const isthmus_operation* operations, const char* const* names,
                       std::size_t n) { return of(state).enqueue(operations, names, n); };
  backend.abort = [](void* state) { of(state).abort(); };
  backend.version = [](void* state) { return of(state).version(); };
  return backend;
}

}  // namespace
}  // namespace isthmus::ucx

const isthmus_backend* isthmus::ucx_backend() noexcept {
  static const isthmus_backend backend = ucx::make_backend();
  return &backend;
}
