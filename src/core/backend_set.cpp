#include "core/backend_set.hpp"

#include <fmt/ranges.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "base/log.hpp"
#include "base/text.hpp"
#include "bootstrap/exchange.hpp"
#include "core/communicator.hpp"

namespace isthmus {
namespace {

// Returns whether the rule applies to any of these collectives (one bit each; 0: all).
bool covers_any(const selection::selection_rule& rule, std::uint32_t collectives) {
  return collectives == 0 || rule.collectives.empty() ||
         std::ranges::any_of(rule.collectives, [&](auto each) { return (collectives >> each & 1) != 0; });
}

struct rejection {
  backend_state state = backend_state::unavailable;
  std::string reason;  // "": the rank can try to create the backend
};

// Returns whether this rank can use the backend according to local information.
rejection find_rejection(const backend_entry& entry, const membership& ranks, const communicator_setup& setup) {
  using enum backend_state;
  if (std::ranges::find(setup.external_backends, entry.name) != setup.external_backends.end())
    return {not_used, "the caller of this communicator runs it (external_backends)"};
  if (entry.backend == nullptr) return {unavailable, entry.reason};
  const char* const platform = isthmus_platform_name(ranks.device.platform);
  if ((entry.backend->platforms & 1u << ranks.device.platform) == 0)
    return {other_platform, fmt::format("it does not support platform {}", platform)};
  if ((entry.backend->capabilities & ISTHMUS_BACKEND_MIXED_PLATFORMS) == 0 && ranks.has_mixed_platforms)
    return {unavailable, "it supports one platform per communicator, and the ranks use several"};
  if ((entry.backend->capabilities & ISTHMUS_BACKEND_ONE_RANK_PER_PROCESS) != 0 && ranks.process_size > 1)
    return {unavailable,
            fmt::format("it supports one rank per process, and this process has {}", ranks.process_size)};
  if ((entry.backend->capabilities & ISTHMUS_BACKEND_MULTI_NODE) == 0 && ranks.nodes > 1)
    return {unavailable, fmt::format("it supports a single node, and the ranks are on {} nodes", ranks.nodes)};
  // A backend that no call can select must not use memory, streams or threads. All ranks have equal rules, so
  // they make the same decision.
  const auto names_backend = [&](const auto& rule) { return rule.backend == entry.name; };
  const auto applies_to_ranks = [&](const auto& rule) {
    return names_backend(rule) &&
           selection::is_relevant(rule, ranks.selection_platform(), ranks.size, ranks.nodes);
  };
  const auto applies_to_calls = [&](const auto& rule) {
    return applies_to_ranks(rule) && covers_any(rule, setup.collectives);
  };
  if (std::ranges::none_of(setup.rules->rules, names_backend)) return {not_used, "no rule names it"};
  if (std::ranges::none_of(setup.rules->rules, applies_to_ranks))
    return {not_used,
            fmt::format("no rule names it for {} rank{} of platform {} on {} node{}", ranks.size,
                        ranks.size == 1 ? "" : "s", platform, ranks.nodes, ranks.nodes == 1 ? "" : "s")};
  if (std::ranges::none_of(setup.rules->rules, applies_to_calls))
    return {not_used, "no rule names it for the collectives of this communicator"};
  return {};
}

// Returns a rank's advertisement of its backends, one line per backend: "name capabilities state reason".
std::string advertise(const membership& ranks, const communicator_setup& setup) {
  std::string text;
  for (const backend_entry& entry : setup.backends) {
    auto [state, reason] = find_rejection(entry, ranks, setup);
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    text += fmt::format("{} {} {} {}\n", entry.name, entry.backend == nullptr ? 0 : entry.backend->capabilities,
                        static_cast<int>(state), reason);
  }
  return text;
}

// Lists the ranks of each node: "ranks 0, 1; 2, 3".
std::string nodes_text(const membership& ranks) {
  std::vector<std::vector<int>> ranks_of(static_cast<std::size_t>(ranks.nodes));
  for (int rank = 0; rank < ranks.size; ++rank)
    ranks_of[static_cast<std::size_t>(ranks.node_of[static_cast<std::size_t>(rank)])].push_back(rank);
  std::vector<std::string> texts;
  for (const auto& node_ranks : ranks_of) texts.push_back(format_list(node_ranks));
  return fmt::format("ranks {}", fmt::join(texts, "; "));
}

struct advertisement {
  std::string name;
  std::uint32_t capabilities;
  rejection local;
};

std::vector<advertisement> parse_advertisements(const std::string& text) {
  std::vector<advertisement> advertisements;
  for (const std::string& line : split_lines(text)) {
    advertisement& each = advertisements.emplace_back();
    std::istringstream fields(line);
    int state = 0;
    fields >> each.name >> each.capabilities >> state;
    each.local.state = static_cast<backend_state>(state);
    fields.ignore(1);
    std::getline(fields, each.local.reason);
  }
  return advertisements;
}

}  // namespace

backend_instance* backend_set::find(const std::string& name) const {
  for (const auto& backend : m_backends)
    if (backend->name() == name) return backend.get();
  return nullptr;
}

bool backend_set::is_any_usable() const {
  return std::ranges::any_of(m_backends, [](const auto& backend) { return backend->is_usable(); });
}

bool backend_set::is_any_usable_plugin() const {
  return std::ranges::any_of(m_backends,
                             [](const auto& backend) { return backend->is_usable() && backend->is_plugin(); });
}

void backend_set::abort() noexcept {
  for (const auto& backend : m_backends) backend->abort();
}

void backend_set::destroy() noexcept {
  for (const auto& backend : m_backends) backend->destroy();
}

void backend_set::register_block(const isthmus_heap_block& block) {
  for (const auto& backend : m_backends) backend->register_block(block);
}

void backend_set::unregister_block(const isthmus_heap_block& block) {
  for (const auto& backend : m_backends) backend->unregister_block(block);
}

split_states backend_set::split(int color, int key) {
  split_states states;
  for (const auto& backend : m_backends)
    if (split_state state = backend->split(color, key)) states.emplace(backend->name(), std::move(state));
  return states;
}

void backend_set::create(bootstrap& control, split_states parent_states) {
  for (const auto& backend : m_backends)
    if (const auto state = parent_states.find(backend->name());
        state != parent_states.end() && backend->reason().empty())
      backend->adopt(std::move(state->second));
  std::vector<const backend_instance*> others;  // that make a last resort unnecessary
  const auto create_matching = [&](bool is_last_resort_pass) {
    for (const auto& backend : m_backends) {
      if (!backend->reason().empty() || is_last_resort(*backend) != is_last_resort_pass) continue;
      if (is_needless(*backend))
        backend->reject(backend_state::not_used,
                        "no rule names it except a built-in one, and another backend supports every operation");
      else if (is_last_resort_pass && has_replacement(*backend, others))
        backend->reject(backend_state::not_used,
                        "no rule names it except a built-in one, and other backends are available");
      else
        create_one(control, *backend);
    }
  };
  create_matching(false);
  // Collect these once, because a last resort must not exclude a composite backend that uses it.
  for (const auto& backend : m_backends)
    if (backend->is_usable()) others.push_back(backend.get());
  create_matching(true);
  if (!is_any_usable()) throw_no_backend(control);
  if (m_ranks.rank == 0) {
    std::vector<std::string> names;
    for (const auto& backend : m_backends)
      if (backend->reason().empty()) names.push_back(backend->name());
    log(log_level::info, "communicator of {} rank(s): backends {}", m_ranks.size, fmt::join(names, ", "));
  }
}

// Equal on all ranks, because they have the same rules. A rule for other platforms or numbers of ranks does not choose
// the backend.
bool backend_set::is_chosen_by_default(const backend_instance& backend) const {
  return std::ranges::none_of(m_setup.rules->rules, [&](const auto& rule) {
    return rule.backend == backend.name() && !selection::is_built_in(rule) &&
           selection::is_relevant(rule, m_ranks.selection_platform(), m_ranks.size, m_ranks.nodes);
  });
}

// With `deterministic`, backends without rank order do not replace those with rank order.
bool backend_set::must_have_rank_order(const backend_instance& backend) const {
  return m_setup.rules->deterministic && (backend.capabilities() & ISTHMUS_BACKEND_RANK_ORDER) != 0;
}

// A caller with external backends needs no last resort.
bool backend_set::has_replacement(const backend_instance& backend,
                                  std::span<const backend_instance* const> others) const {
  if (!must_have_rank_order(backend)) return !m_setup.external_backends.empty() || !others.empty();
  return std::ranges::any_of(
      others, [](const auto* other) { return (other->capabilities() & ISTHMUS_BACKEND_RANK_ORDER) != 0; });
}

// Equal on all ranks, because creation succeeds on all ranks or on none.
bool backend_set::is_needless(const backend_instance& backend) const {
  std::uint32_t required = ISTHMUS_BACKEND_EVERY_OPERATION;
  if (must_have_rank_order(backend)) required |= ISTHMUS_BACKEND_RANK_ORDER;
  return is_chosen_by_default(backend) && std::ranges::any_of(m_backends, [&](const auto& other) {
           return other->is_usable() && (other->capabilities() & required) == required &&
                  is_chosen_by_default(*other);
         });
}

// Equal on all ranks, because they have the same combined capabilities.
bool backend_set::is_last_resort(const backend_instance& backend) const {
  return (backend.capabilities() & ISTHMUS_BACKEND_LAST_RESORT) != 0 && is_chosen_by_default(backend);
}

// On several nodes, the message lists the ranks of each node. It omits backends of other platforms, unless a rule of
// the user names them.
void backend_set::throw_no_backend(bootstrap& control) const {
  std::vector<std::string> texts;
  for (const auto& backend : m_backends) {
    const bool is_for_others = !m_ranks.has_mixed_platforms && is_chosen_by_default(*backend) &&
                               backend->state() == backend_state::other_platform;
    if (!is_for_others) texts.push_back(backend->name() + ": " + backend->reason());
  }
  if (texts.empty())
    texts.push_back(fmt::format("none supports platform {}", isthmus_platform_name(m_ranks.device.platform)));
  const std::string reasons = fmt::format("{}", fmt::join(texts, "; "));
  const char* const hint =
      m_ranks.has_mixed_platforms
          ? "use devices of one platform on all ranks, or add a rule for platform = \"mixed\" that "
            "names a backend for several platforms"
          : "run isthmus info to list the backends of this machine";
  if (m_ranks.nodes == 1)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("no backend works for these ranks: {}", reasons), hint);
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   fmt::format("no backend crosses between the {} nodes of these ranks ({}): {}", m_ranks.nodes,
                               nodes_text(m_ranks), reasons),
                   control.mpi_table() == nullptr
                       ? "create the communicator from MPI, or configure a backend that supports several nodes"
                       : hint);
}

void backend_set::agree(bootstrap& control, recorder::flight_recorder& recorder) {
  const auto texts = gather_texts(control, advertise(m_ranks, m_setup));
  std::vector<std::vector<advertisement>> advertisements;
  for (const std::string& text : texts) advertisements.push_back(parse_advertisements(text));
  std::vector<std::string> names;
  for (const auto& rank_advertisements : advertisements)
    for (const advertisement& each : rank_advertisements)
      if (std::ranges::find(names, each.name) == names.end()) names.push_back(each.name);

  for (const std::string& name : names) {
    std::uint32_t shared_capabilities = ~0u;
    rejection first;
    for (std::size_t rank = 0; rank < advertisements.size() && first.reason.empty(); ++rank) {
      const auto match = std::ranges::find(advertisements[rank], name, &advertisement::name);
      const bool has_it = match != advertisements[rank].end();
      shared_capabilities &= has_it ? match->capabilities : 0;
      first = has_it ? match->local
                     : rejection{backend_state::unavailable, fmt::format("rank {} does not have it", rank)};
    }
    const auto local_entry = std::ranges::find(m_setup.backends, name, &backend_entry::name);
    backend_entry entry =
        local_entry != m_setup.backends.end() ? *local_entry : backend_entry{name, nullptr, "", ""};
    m_backends.push_back(std::make_unique<backend_instance>(m_owner, std::move(entry), m_backends.size()));
    m_backends.back()->set_capabilities(shared_capabilities);
    const backend_instance& backend = *m_backends.back();
    recorder.add_backend(backend.index(), name, backend.is_blocking(),
                         backend.is_present() ? backend.functions().algorithms : nullptr);
    if (!first.reason.empty()) m_backends.back()->reject(first.state, first.reason);
  }
}

// If the backend is UNSUPPORTED on any rank, no rank uses it. Any other failure makes the creation fail
// on all ranks.
void backend_set::create_one(bootstrap& control, backend_instance& backend) {
  backend.set_by_default(is_chosen_by_default(backend));
  std::optional<error> failure;
  if (const isthmus_status status = backend.create(); status != ISTHMUS_SUCCESS)
    failure = error(backend.take_failure(status, "create"));
  // The other ranks may be blocked in an exchange inside create. A published failure ends it.
  const auto publish = [&] {
    if (!failure || failure->info().status == ISTHMUS_ERROR_UNSUPPORTED) return;
    if (failure->info().failed_ranks().empty())
      failure = failure->with_failed_ranks(std::array{control.rank()});
    failure_info published = failure->info();
    copy_text(published.message, sizeof published.message,
              fmt::format("creating backend {} failed: {}", backend.name(), failure->what()));
    if (control.publish_failure(published)) throw error(*failure);
  };
  publish();
  auto all = gather_votes(control, no_value{}, failure, after_create);
  if (const int early_rank = find_early_return(all); early_rank >= 0) {
    // The exchange of the other ranks has failed in the same way, so they vote next.
    failure = early_return_error(early_rank, all[static_cast<std::size_t>(early_rank)]);
    publish();
    all = gather_votes(control, no_value{}, failure, after_create);
  }
  if (first_refusal(all, ISTHMUS_ERROR_UNSUPPORTED) >= 0) backend.destroy();
  check_votes(control.rank(), all, failure, fmt::format("creating backend {} failed", backend.name()),
              ISTHMUS_ERROR_REMOTE, ISTHMUS_ERROR_UNSUPPORTED);
  if (first_refusal(all) < 0) return;
  backend.reject(backend_state::unavailable, all.size() == 1 ? all[0].text : refusal_text(all));
  log(log_level::info, "rank {}: backend {} is not available: {}", m_ranks.rank, backend.name(),
      backend.reason());
}

}  // namespace isthmus
