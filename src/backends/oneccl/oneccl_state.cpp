#include "oneccl_state.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "backends/nccl_family/native_calls.hpp"
#include "base/location.hpp"
#include "base/tables.hpp"

namespace isthmus::oneccl {
namespace {

constexpr int minimum_version = 20220000;  // the first release with the C interface

// Result codes of oneccl/v2/types.h, version 2022.2. They differ from NCCL's.
nccl_family::result_info result_info_of(int result) {
  switch (result) {
    case 0: return {ISTHMUS_SUCCESS, "onecclSuccess", nullptr};
    case 1: return {ISTHMUS_ERROR_BACKEND, "onecclError", "set CCL_LOG_LEVEL=info"};
    case 2: return {ISTHMUS_ERROR_BACKEND, "onecclSystemError", "set CCL_LOG_LEVEL=info"};
    case 3: return {ISTHMUS_ERROR_BACKEND, "onecclInternalError", "set CCL_LOG_LEVEL=info"};
    case 4: return {ISTHMUS_ERROR_BACKEND, "onecclInvalidArgument", "pass USM buffers of the queue's context"};
    case 5: return {ISTHMUS_ERROR_BACKEND, "onecclInvalidUsage", "use the same order of calls on all ranks"};
    case 6: return {ISTHMUS_ERROR_BACKEND, "onecclInProgress", nullptr};
    case 7: return {ISTHMUS_ERROR_BACKEND, "onecclFailureGPU", "check the device for earlier faults"};
    case 8: return {ISTHMUS_ERROR_BACKEND, "onecclFailureCPU", "set CCL_LOG_LEVEL=info"};
    case 9: return {ISTHMUS_ERROR_OUT_OF_MEMORY, "onecclAllocFailureCPU", nullptr};
    case 10: return {ISTHMUS_ERROR_OUT_OF_MEMORY, "onecclAllocFailureGPU", nullptr};
    case 11: return {ISTHMUS_ERROR_BACKEND, "onecclPluginException", "set CCL_LOG_LEVEL=info"};
    case 12:
      return {ISTHMUS_ERROR_UNSUPPORTED, "onecclNotImplemented",
              "use an oneCCL plug-in that implements the call"};
    default: return {ISTHMUS_ERROR_BACKEND, "unknown result code", nullptr};
  }
}

std::string load(const isthmus_backend_context& context, oneccl_library& lib) {
  library_search_request search;
  search.option = context.option(context.runtime, "library");
  search.variable = "ISTHMUS_ONECCL_LIBRARY";
  search.site_packages = context.option(context.runtime, "site_packages");
  search.names = {"libccl.so.2"};
  search.wheel_folders = {"../.."};  // the PyPI wheel installs into lib/ of the environment
  search.system_folders = {"/opt/intel/oneapi/ccl/latest/lib"};
  std::string reason;
  const auto file = dynamic_library::open(search, reason);
  if (!file) return "no oneCCL library could be loaded: " + reason;
  lib.path = file.path();
  const std::string missing =
      lib.functions.load("oneccl", false, [&](const std::string& name) { return file.symbol(name); });
  lib.comm_init_rank = reinterpret_cast<decltype(lib.comm_init_rank)>(file.symbol("onecclCommInitRank"));
  if (!missing.empty() || lib.comm_init_rank == nullptr)
    return lib.path + " lacks " + (missing.empty() ? "onecclCommInitRank" : missing);
  // The first call loads oneCCL's plug-in for the hardware and fails if there is no GPU.
  if (const int result = lib.functions.get_version(&lib.version); result != 0)
    return lib.path + " found no device to run on: " + lib.functions.get_last_error(nullptr);
  lib.version_text = std::to_string(lib.version / 10000) + "." + std::to_string(lib.version / 100 % 100) + "." +
                     std::to_string(lib.version % 100);
  if (lib.version < minimum_version)
    return lib.path + " is oneCCL " + lib.version_text + "; version 2022 or newer is required";
  return {};
}

}  // namespace

oneccl_library* oneccl_library::get(const isthmus_backend_context& context, std::string& reason) {
  static std::mutex mutex;
  static std::unique_ptr<oneccl_library> instance;
  const std::lock_guard lock(mutex);
  if (instance == nullptr) {
    auto new_library = std::make_unique<oneccl_library>();
    reason = load(context, *new_library);
    if (reason.empty()) instance = std::move(new_library);
  }
  return instance.get();
}

isthmus_status oneccl_state::fail(int result, const char* function) const {
  const nccl_family::result_info info = result_info_of(result);
  const char* text = m_library.functions.get_last_error(m_comm);
  return m_context.fail(m_context.runtime, info.status, result, ISTHMUS_HERE, info.hint, "oneccl%s: %s: %s",
                        function, info.name, text != nullptr ? text : "no details");
}

isthmus_status oneccl_state::fail_interrupted(const char* activity) const {
  if (is_aborted())
    return m_context.fail(m_context.runtime, ISTHMUS_ERROR_ABORTED, 0, ISTHMUS_HERE, nullptr,
                          "the communicator was aborted during %s", activity);
  return m_context.fail(m_context.runtime, ISTHMUS_ERROR_TIMEOUT, 0, ISTHMUS_HERE,
                        "check for missing or stuck ranks; increase the timeout if they are only slow",
                        "%s took longer than the timeout of %.3g s", activity, m_context.timeout_s);
}

isthmus_status oneccl_state::connect(const votes<probe_record>& all) {
  // Not every oneCCL plug-in has a non-blocking mode, so a separate thread waits for the other ranks.
  const auto id = std::make_shared<oneccl_unique_id>();
  std::memcpy(id.get(), all[0].value.id, sizeof(oneccl_unique_id));
  const auto new_comm = std::make_shared<nccl_family::native_comm>(nullptr);
  const auto comm_init_rank = m_library.comm_init_rank;
  const auto size = static_cast<std::size_t>(m_context.size);
  const int rank = m_context.rank;
  const auto result = nccl_family::run_with_timeout(
      [=] { return comm_init_rank(new_comm.get(), size, *id, rank); },
      std::chrono::duration<double>(m_context.timeout_s), [this] { return is_aborted(); });
  if (!result) return fail_interrupted("onecclCommInitRank");
  if (*result != 0) return fail(*result, "CommInitRank");
  m_comm = *new_comm;
  return ISTHMUS_SUCCESS;
}

const char* oneccl_state::supports(const isthmus_operation& operation) const {
  if (!row_of(operation.collective).is_reduction) return nullptr;
  if (!nccl_family::native_datatype_of(operation.datatype)) return "oneCCL cannot reduce 16-bit integers";
  return nccl_family::is_float8(operation.datatype) ? "oneCCL has no 8-bit floating-point types" : nullptr;
}

void oneccl_state::add_queue(const sycl::queue& queue) {
  if (std::find(m_queues.begin(), m_queues.end(), queue) == m_queues.end()) m_queues.push_back(queue);
}

isthmus_status oneccl_state::enqueue_one(const isthmus_operation& operation) {
  if (operation.stream == nullptr)
    return m_context.fail(m_context.runtime, ISTHMUS_ERROR_INVALID_ARGUMENT, 0, ISTHMUS_HERE,
                          "pass the address of the sycl::queue", "stream is NULL");
  sycl::queue& queue = *static_cast<sycl::queue*>(operation.stream);
  add_queue(queue);
  if (operation.collective == ISTHMUS_BARRIER && m_barrier_byte == nullptr)
    m_barrier_byte = sycl::malloc_host<std::byte>(1, queue);
  const nccl_family::enqueue_target target{m_library.functions, nullptr,        m_comm, m_context.rank,
                                           m_context.size,      m_barrier_byte, 0};
  nccl_family::scratch_memory unused_scratch;
  const nccl_family::enqueue_result result = nccl_family::enqueue_collective(target, operation, unused_scratch);
  return result.ok() ? ISTHMUS_SUCCESS : fail(result.result, result.function);
}

isthmus_status oneccl_state::enqueue(const isthmus_operation* operations, std::size_t n) {
  if (is_aborted()) return fail_interrupted("enqueue");
  if (n == 1) return enqueue_one(operations[0]);
  if (const int result = m_library.functions.group_start(); result != 0) return fail(result, "GroupStart");
  isthmus_status status = ISTHMUS_SUCCESS;
  for (std::size_t i = 0; i < n && status == ISTHMUS_SUCCESS; ++i) status = enqueue_one(operations[i]);
  const int result = m_library.functions.group_end();
  return status == ISTHMUS_SUCCESS && result != 0 ? fail(result, "GroupEnd") : status;
}

isthmus_status oneccl_state::synchronize() {
  std::vector<sycl::queue> queues = m_queues;
  const auto result = nccl_family::run_with_timeout(
      [queues]() mutable {
        try {
          for (sycl::queue& queue : queues) queue.wait();
        } catch (const std::exception&) {  // also thrown if the process exits during the wait
          return 1;
        }
        return 0;
      },
      std::chrono::duration<double>(m_context.timeout_s), [this] { return is_aborted(); });
  if (!result) return fail_interrupted("synchronization of the queues");
  if (*result == 0) return ISTHMUS_SUCCESS;
  return m_context.fail(m_context.runtime, ISTHMUS_ERROR_BACKEND, 0, ISTHMUS_HERE, nullptr,
                        "a SYCL queue reported an error during synchronization");
}

void oneccl_state::release() {
  const bool is_idle = synchronize() == ISTHMUS_SUCCESS;
  if (m_barrier_byte != nullptr && is_idle) sycl::free(m_barrier_byte, m_queues.front());
  if (m_comm == nullptr) return;
  const auto destroy = m_library.functions.comm_destroy;
  const nccl_family::native_comm comm = m_comm;
  // The library has no abort function. If other ranks have left the communicator, it is leaked.
  if (!is_idle || !nccl_family::run_with_timeout([=] { return destroy(comm); }, std::chrono::seconds(30)))
    m_context.log(m_context.runtime, 2, "oneCCL did not release a communicator within 30 s; it is leaked");
}

}  // namespace isthmus::oneccl
