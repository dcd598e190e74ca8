#include "backends/ucx/library.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <memory>
#include <mutex>

#include "base/dynamic_library.hpp"

namespace isthmus::ucx {
namespace {

// UCX takes over the signals of crashes when it is loaded, to print a stack. They are the program's.
class kept_signals {
 public:
  kept_signals() {
    for (std::size_t i = 0; i < numbers.size(); ++i) ::sigaction(numbers[i], nullptr, &m_actions[i]);
  }
  ~kept_signals() {
    for (std::size_t i = 0; i < numbers.size(); ++i) ::sigaction(numbers[i], &m_actions[i], nullptr);
  }
  kept_signals(const kept_signals&) = delete;
  kept_signals& operator=(const kept_signals&) = delete;

 private:
  static constexpr std::array numbers{SIGILL, SIGSEGV, SIGBUS, SIGFPE};
  std::array<struct sigaction, numbers.size()> m_actions{};
};

std::string load_functions(const dynamic_library& file, functions& call) {
  symbol_loader loader(file, "ucp_");
  loader.load_required(call.config_read, "config_read");
  loader.load_required(call.config_modify, "config_modify");
  loader.load_required(call.config_release, "config_release");
  loader.load_required(call.init_version, "init_version");
  loader.load_required(call.context_print_info, "context_print_info");
  loader.load_required(call.context_query, "context_query");
  loader.load_required(call.cleanup, "cleanup");
  loader.load_required(call.worker_create, "worker_create");
  loader.load_required(call.worker_destroy, "worker_destroy");
  loader.load_required(call.worker_get_address, "worker_get_address");
  loader.load_required(call.worker_release_address, "worker_release_address");
  loader.load_required(call.worker_progress, "worker_progress");
  loader.load_required(call.worker_flush_nbx, "worker_flush_nbx");
  loader.load_required(call.ep_create, "ep_create");
  loader.load_required(call.ep_close_nbx, "ep_close_nbx");
  loader.load_required(call.tag_send_nbx, "tag_send_nbx");
  loader.load_required(call.tag_recv_nbx, "tag_recv_nbx");
  loader.load_required(call.request_check_status, "request_check_status");
  loader.load_required(call.request_cancel, "request_cancel");
  loader.load_required(call.request_free, "request_free");
  symbol_loader common(file, "ucs_");  // of libucs, which libucp depends on
  common.need(call.status_string, "status_string");
  return !loader.first_missing().empty() ? loader.first_missing() : common.missing();
}

std::string load(const isthmus_backend_context& context, library& into) {
  library_search_request search;
  search.option = context.option(context.runtime, "library");
  search.variable = "ISTHMUS_UCX_LIBRARY";
  search.site_packages = context.option(context.runtime, "site_packages");
  search.names = {"libucp.so.0"};
  search.wheel_folders = {"libucx/lib"};
  std::string reason;
  const kept_signals kept;
  const auto file = dynamic_library::open(search, reason);
  if (!file) return "no UCX library could be loaded: " + reason;
  into.path = file.path();
  // The version comes first: an old library is the usual cause of a missing function.
  symbol_loader loader(file, "ucp_");
  loader.load_required(into.call.get_version, "get_version");
  loader.load_required(into.call.get_version_string, "get_version_string");
  if (!loader.first_missing().empty()) return fmt::format("{} lacks {}: it is not UCX", into.path, loader.first_missing());
  unsigned major = 0, release = 0;
  unsigned& minor = into.minor;
  into.call.get_version(&major, &minor, &release);
  into.text = fmt::format("{} from {}", into.call.get_version_string(), into.path);
  if (major != api_major || minor < least_minor)
    return fmt::format("{} is UCX {}.{}.{}; {}.{} or a newer {}.x is needed", into.path, major, minor, release,
                       api_major, least_minor, api_major);
  const std::string missing = load_functions(file, into.call);
  return missing.empty() ? std::string() : fmt::format("{} lacks {}", into.path, missing);
}

}  // namespace

const library* library::get(const isthmus_backend_context& context, std::string& reason) {
  static std::mutex mutex;
  static std::unique_ptr<library> only;
  const std::lock_guard lock(mutex);
  if (only == nullptr) {
    auto made = std::make_unique<library>();
    reason = load(context, *made);
    if (reason.empty()) only = std::move(made);
  }
  return only.get();
}

}  // namespace isthmus::ucx
