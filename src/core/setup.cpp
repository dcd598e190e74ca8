// Setup of a communicator: the settings that each rank determines alone.
#include <fmt/ranges.h>
#include <isthmus/isthmus.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/process.hpp"
#include "bootstrap/exchange.hpp"
#include "core/communicator.hpp"

namespace isthmus {
namespace {

std::vector<selection::known_backend> known_backends(const std::vector<backend_entry>& entries) {
  std::vector<selection::known_backend> backends;
  for (const backend_entry& entry : entries) {
    if (entry.backend == nullptr) continue;
    std::vector<std::string> algorithms;
    for (const char* const* name = entry.backend->algorithms; name != nullptr && *name != nullptr; ++name)
      algorithms.emplace_back(*name);
    backends.push_back({entry.name, std::move(algorithms)});
  }
  return backends;
}

std::vector<selection::skipped_plugin> skipped_plugins(const std::vector<backend_entry>& entries) {
  std::vector<selection::skipped_plugin> plugins;
  for (const backend_entry& entry : entries)
    if (entry.backend == nullptr)
      plugins.push_back({entry.name == plugin_path_variable ? "" : entry.name, entry.reason});
  return plugins;
}

// Ranks read the state of other processes and open their memory through /proc. Some libraries of plug-ins hang
// without it, so this check comes before they are loaded.
void check_proc() {
  errno = 0;
  if (process_start_time(::getpid()) != 0) return;
  const int code = errno;
  throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                   fmt::format("communicator_create: cannot read /proc/self/stat: {}", std::strerror(code)),
                   is_shortage(code) ? shortage_hint : "mount /proc in the container of this rank", code);
}

}  // namespace

std::string communicator_setup::rules_text() const {
  if (!rules) return "";
  return rules->canonical() + (collectives == 0 ? "" : fmt::format("collectives {:#x}\n", collectives)) +
         (external_backends.empty() ? ""
                                    : fmt::format("external backends {}\n", fmt::join(external_backends, ",")));
}

communicator_setup prepare(isthmus_device device, const isthmus_communicator_options& options) {
  communicator_setup setup;
  setup.device = device;
  setup.collectives = options.collectives;
  setup.setup_timeout_s = options.setup_timeout_s;
  setup.starts_together = options.starts_together != 0;
  if (options.external_backends != nullptr) {
    std::istringstream names(options.external_backends);
    for (std::string name; std::getline(names, name, ',');) setup.external_backends.push_back(name);
  }
  try {
    check_proc();
    auto rules = std::make_shared<selection::configuration>(selection::load_configuration(options.config_path));
    setup.timeout_s = options.timeout_s > 0 ? options.timeout_s : rules->timeout_s;
    setup.rules = rules;
    setup.trace = recorder::read_trace_options();
    setup.backends = load_backends(rules->plugins);
    selection::resolve_backends(*rules, known_backends(setup.backends), skipped_plugins(setup.backends));
  } catch (...) {
    if (options.timeout_s > 0) setup.timeout_s = options.timeout_s;
    setup.failure = current_error();
  }
  return setup;
}

std::shared_ptr<communicator> communicator::create_subcommunicator(isthmus_device device, int color, int key,
                                                                   const std::string& creator,
                                                                   const char* use) {
  std::unique_ptr<bootstrap> control = m_control->split(color, key);
  if (!control) return nullptr;
  // The creator may be used again inside the subcommunicator if the platform differs or there are several
  // nodes. Equal on all ranks.
  const bool is_other_platform = m_ranks.has_mixed_platforms || device.platform != m_ranks.device.platform;
  const bool excludes_creator = !is_other_platform || m_ranks.nodes == 1;
  communicator_setup setup = m_setup;
  setup.device = device;
  setup.external_backends.clear();  // they belong to the caller of the parent
  setup.collectives = 0;            // the backend may call any collective
  setup.starts_together = false;    // the calls of the parent do
  setup.failure = capture_error([&] {
    auto rules = std::make_shared<selection::configuration>(
        selection::subcommunicator_configuration(*m_setup.rules, excludes_creator ? creator : "", use));
    selection::resolve_backends(*rules, known_backends(setup.backends), skipped_plugins(setup.backends));
    setup.rules = std::move(rules);
  });
  return create(std::move(control), std::move(setup), {}, shared_from_this());
}

}  // namespace isthmus
