#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <memory>
#include <mutex>

#include "backends/ucx/worker.hpp"
#include "base/dynamic_library.hpp"

namespace isthmus::ucx {
namespace {

// Restores the signal handlers of the program: UCX installs its own handlers for crash signals when
// it is loaded.
class signal_handler_guard {
 public:
  signal_handler_guard() {
    for (std::size_t i = 0; i < numbers.size(); ++i) ::sigaction(numbers[i], nullptr, &m_actions[i]);
  }
  ~signal_handler_guard() {
    for (std::size_t i = 0; i < numbers.size(); ++i) ::sigaction(numbers[i], &m_actions[i], nullptr);
  }
  signal_handler_guard(const signal_handler_guard&) = delete;
  signal_handler_guard& operator=(const signal_handler_guard&) = delete;

 private:
  static constexpr std::array numbers{SIGILL, SIGSEGV, SIGBUS, SIGFPE};
  std::array<struct sigaction, numbers.size()> m_actions{};
};

std::string load_functions(const dynamic_library& file, ucp_functions& api) {
  symbol_loader loader(file, "ucp_");
  loader.load_required(api.config_read, "config_read");
  loader.load_required(api.config_modify, "config_modify");
  loader.load_required(api.config_release, "config_release");
  loader.load_required(api.init_version, "init_version");
  loader.load_required(api.context_print_info, "context_print_info");
  loader.load_required(api.context_query, "context_query");
  loader.load_required(api.cleanup, "cleanup");
  loader.load_required(api.worker_create, "worker_create");
  loader.load_required(api.worker_destroy, "worker_destroy");
  loader.load_required(api.worker_get_address, "worker_get_address");
  loader.load_required(api.worker_release_address, "worker_release_address");
  loader.load_required(api.worker_progress, "worker_progress");
  loader.load_required(api.worker_flush_nbx, "worker_flush_nbx");
  loader.load_required(api.ep_create, "ep_create");
  loader.load_required(api.ep_close_nbx, "ep_close_nbx");
  loader.load_required(api.tag_send_nbx, "tag_send_nbx");
  loader.load_required(api.tag_recv_nbx, "tag_recv_nbx");
  loader.load_required(api.request_check_status, "request_check_status");
  loader.load_required(api.request_cancel, "request_cancel");
  loader.load_required(api.request_free, "request_free");
  symbol_loader ucs_loader(file, "ucs_");  // in libucs, a dependency of libucp
  ucs_loader.load_required(api.status_string, "status_string");
  return !loader.first_missing().empty() ? loader.first_missing() : ucs_loader.first_missing();
}

std::string load(const isthmus_backend_context& context, library& result) {
  library_search_request search;
  search.option = context.option(context.runtime, "library");
  search.variable = "ISTHMUS_UCX_LIBRARY";
  search.site_packages = context.option(context.runtime, "site_packages");
  search.names = {"libucp.so.0"};
  search.wheel_folders = {"libucx/lib"};
  std::string reason;
  const signal_handler_guard guard;
  const auto file = dynamic_library::open(search, reason);
  if (!file) return "cannot load a UCX library: " + reason;
  result.path = file.path();
  // Check the version first: a missing function usually means that the library is too old.
  symbol_loader loader(file, "ucp_");
  loader.load_required(result.api.get_version, "get_version");
  loader.load_required(result.api.get_version_string, "get_version_string");
  if (!loader.first_missing().empty())
    return fmt::format("{} has no function {}: it is not UCX", result.path, loader.first_missing());
  unsigned major = 0, release = 0;
  unsigned& minor = result.minor;
  result.api.get_version(&major, &minor, &release);
  result.description = fmt::format("{} from {}", result.api.get_version_string(), result.path);
  if (major != api_major || minor < min_minor)
    return fmt::format("{} is UCX {}.{}.{}; version {}.{} or a newer {}.x is needed", result.path, major, minor,
                       release, api_major, min_minor, api_major);
  const std::string missing = load_functions(file, result.api);
  return missing.empty() ? std::string() : fmt::format("{} has no function {}", result.path, missing);
}

}  // namespace

const library* library::get(const isthmus_backend_context& context, std::string& reason) {
  static std::mutex mutex;
  static std::unique_ptr<library> instance;
  const std::lock_guard lock(mutex);
  if (instance == nullptr) {
    auto candidate = std::make_unique<library>();
    reason = load(context, *candidate);
    if (reason.empty()) instance = std::move(candidate);
  }
  return instance.get();
}

}  // namespace isthmus::ucx
