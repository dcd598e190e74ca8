#include "selection/layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "selection/defaults.hpp"
#include "selection/grammar.hpp"

namespace isthmus::selection {
namespace {

// Sets or replaces the entry of `key`, keeping the list sorted by key.
template <typename Value>
void assign(std::vector<std::pair<std::string, Value>>& list, const std::string& key, const Value& value) {
  const auto found = std::lower_bound(list.begin(), list.end(), key, [](const auto& entry, const auto& wanted) {
    return entry.first < wanted;
  });
  if (found != list.end() && found->first == key)
    found->second = value;
  else
    list.insert(found, {key, value});
}

rule make_rule(const std::string& source, const std::string& backend) {
  rule result;
  result.source = source;
  result.backend = backend;
  return result;
}

void append(std::vector<rule>& rules, rule added) {
  finish_rule(added);
  rules.push_back(std::move(added));
}

// The shorthand of the SuCL paper (section 4.3) over several layers: the latest threshold and the
// latest vendor backend of each platform count, whichever layer they came from.
class threshold_expansion {
 public:
  threshold_expansion() {
    for (const auto& [platform, backend] : built_in_defaults().mpi_backends) m_mpi[platform] = backend;
  }

  void add(const layer& layer, std::vector<rule>& rules) {
    for (const auto& [platform, backend] : layer.vendor_backends) m_vendor[platform] = backend;
    if (layer.threshold) {
      m_threshold = *layer.threshold;
      if (m_threshold.value < 0) always_mpi(rules);
      for (const auto& [platform, backend] : m_vendor) expand(platform, m_threshold.source, rules);
      return;
    }
    for (const auto& [platform, backend] : layer.vendor_backends) expand(platform, backend.source, rules);
  }

 private:
  const std::string& mpi_for(isthmus_platform platform) const {
    const auto own = m_mpi.find(platform);
    return own != m_mpi.end() ? own->second : m_mpi.at(ISTHMUS_PLATFORM_COUNT);
  }
  void always_mpi(std::vector<rule>& rules) const {
    append(rules, make_rule(m_threshold.source, m_mpi.at(ISTHMUS_PLATFORM_COUNT)));
    std::map<std::string, std::vector<isthmus_platform>> others;
    for (const auto& [platform, backend] : m_mpi)
      if (platform != ISTHMUS_PLATFORM_COUNT) others[backend].push_back(platform);
    for (const auto& [backend, platforms] : others) {
      rule own = make_rule(m_threshold.source, backend);
      own.platforms = platforms;
      append(rules, own);
    }
  }
  void expand(isthmus_platform platform, const std::string& source, std::vector<rule>& rules) const {
    if (m_threshold.value < 0) return;  // always MPI
    rule vendor = make_rule(source, m_vendor.at(platform).value);
    vendor.platforms = {platform};
    append(rules, vendor);
    if (m_threshold.value == 0) return;  // always the vendor's
    rule below = make_rule(source, mpi_for(platform));
    below.platforms = {platform};
    below.has_byte_range = true;
    below.end_bytes = static_cast<std::uint64_t>(m_threshold.value);
    append(rules, below);
  }

  std::map<isthmus_platform, sourced<std::string>> m_vendor;
  std::map<isthmus_platform, std::string> m_mpi;
  sourced<std::int64_t> m_threshold{0, ""};
};

// A list of names replaces what was there; a list of names behind "-" is taken out of it.
void apply(const memory_layer& layer, memory_settings& settings) {
  if (layer.providers) {
    const auto& words = layer.providers->value;
    if (words.front().front() != '-') {
      settings.providers = words;
    } else {
      for (const std::string& word : words) std::erase(settings.providers, word.substr(1));
    }
    settings.providers_source = layer.providers->source;
  }
  settings.pool = layer.pool.value_or(settings.pool);
  settings.pool_max_bytes = layer.pool_max_bytes.value_or(settings.pool_max_bytes);
  if (layer.pool_keep_bytes) settings.pool_keep_bytes = layer.pool_keep_bytes;
}

}  // namespace

const layer& built_in_defaults() {
  static const layer defaults = read_toml(default_configuration, "defaults.toml", "default");
  return defaults;
}

configuration merge(const std::vector<layer>& layers) {
  configuration result;
  result.tensor_parallel_backend = built_in_defaults().tensor_parallel_backend;
  // A default backend is for what no other rule takes, so it stands below the rules of all layers.
  for (const layer& layer : layers) {
    if (layer.default_backend)
      append(result.rules, make_rule(layer.default_backend->source, layer.default_backend->value));
  }
  threshold_expansion thresholds;
  for (const layer& layer : layers) {
    thresholds.add(layer, result.rules);
    result.rules.insert(result.rules.end(), layer.rules.begin(), layer.rules.end());
    if (layer.timeout_s) result.timeout_s = *layer.timeout_s;
    if (layer.check) result.check = *layer.check;
    if (layer.deterministic) result.deterministic = *layer.deterministic;
    for (const auto& [name, platform] : layer.sycl_backends) assign(result.sycl_backends, name, platform);
    for (const auto& [name, path] : layer.plugins) assign(result.plugins, name, path);
    for (const auto& [key, value] : layer.options) assign(result.options, key, value);
    apply(layer.memory, result.memory);
    if (!layer.file.empty()) result.files.push_back(layer.file);
  }
  for (const layer& layer : layers) {
    if (layer.forced) result.rules = {*layer.forced};
  }
  return result;
}

std::string configuration::canonical() const {
  std::string text;
  for (const rule& rule : rules) text += fmt::format("rule {}\n", rule.text);
  for (const auto& [name, platform] : sycl_backends)
    text += fmt::format("sycl_backend {}={}\n", name, platform_names()[platform]);
  for (const auto& [key, value] : options) {
    // Debug format escapes line ends: one item stays one line.
    text += fmt::format("option {}={:?}\n", key, value);
  }
  if (check) text += "check\n";
  if (deterministic) text += "deterministic\n";
  return text;
}

}  // namespace isthmus::selection
