#include "selection/layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "selection/grammar.hpp"

namespace isthmus::selection {
namespace {

// Adds or replaces the entry of `key`. The list stays sorted by key.
template <typename Value>
void assign(std::vector<std::pair<std::string, Value>>& list, const std::string& key, const Value& value) {
  const auto position =
      std::lower_bound(list.begin(), list.end(), key,
                       [](const auto& entry, const auto& searched_key) { return entry.first < searched_key; });
  if (position != list.end() && position->first == key)
    position->second = value;
  else
    list.insert(position, {key, value});
}

selection_rule make_rule(const std::string& source, const std::string& backend) {
  selection_rule result;
  result.source = source;
  result.backend = backend;
  return result;
}

void append(std::vector<selection_rule>& rules, selection_rule rule) {
  finish_rule(rule);
  rules.push_back(std::move(rule));
}

// Expands the `threshold` shorthand (SuCL paper, section 4.3) to rules. For each platform, the last threshold
// and the last vendor backend apply, even if different layers set them.
class threshold_expansion {
 public:
  void add(const config_layer& layer, std::vector<selection_rule>& rules) {
    for (const auto& [platform, backend] : layer.vendor_backends) m_vendor_backends[platform] = backend;
    if (layer.threshold) {
      m_threshold = *layer.threshold;
      if (m_threshold.value < 0) append(rules, make_rule(m_threshold.source, built_in_defaults().mpi_backend));
      for (const auto& [platform, backend] : m_vendor_backends)
        append_platform_rules(platform, m_threshold.source, rules);
      return;
    }
    for (const auto& [platform, backend] : layer.vendor_backends)
      append_platform_rules(platform, backend.source, rules);
  }

 private:
  void append_platform_rules(isthmus_platform platform, const std::string& source,
                             std::vector<selection_rule>& rules) const {
    if (m_threshold.value < 0) return;  // MPI for all sizes
    selection_rule vendor_rule = make_rule(source, m_vendor_backends.at(platform).value);
    vendor_rule.platforms = {platform};
    append(rules, vendor_rule);
    if (m_threshold.value == 0) return;  // the vendor backend for all sizes
    selection_rule mpi_rule = make_rule(source, built_in_defaults().mpi_backend);
    mpi_rule.platforms = {platform};
    mpi_rule.has_byte_range = true;
    mpi_rule.end_bytes = static_cast<std::uint64_t>(m_threshold.value);
    append(rules, mpi_rule);
  }

  std::map<isthmus_platform, config_setting<std::string>> m_vendor_backends;
  config_setting<std::int64_t> m_threshold{0, ""};
};

// A list of plain names replaces the providers. Names with a "-" prefix are removed from the providers.
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
  settings.pool_max_block_bytes = layer.pool_max_block_bytes.value_or(settings.pool_max_block_bytes);
  if (layer.pool_keep_bytes) settings.pool_keep_bytes = layer.pool_keep_bytes;
}

selection_rule make_override_rule(const std::string& creator, const char* use) {
  selection_rule result;
  result.source = fmt::format("options of backend {}", creator);
  try {
    set_field(result, "use", use);
    finish_rule(result);
  } catch (const grammar_error& failure) {
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE, fmt::format("{}: {}", result.source, failure.message),
                     failure.hint);
  }
  return result;
}

}  // namespace

const config_layer& built_in_defaults() {
  static const config_layer defaults = read_toml(default_configuration, "defaults.toml", "default");
  return defaults;
}

configuration merge(const std::vector<config_layer>& layers) {
  configuration result;
  result.tensor_parallel_backend = built_in_defaults().tensor_parallel_backend;
  // A default backend applies to calls that no other rule matches, so its rule precedes the rules
  // of all layers. The fallback of a platform applies before it.
  for (const config_layer& layer : layers) {
    if (layer.default_backend)
      append(result.rules, make_rule(layer.default_backend->source, layer.default_backend->value));
  }
  for (const config_layer& layer : layers) {
    for (const auto& [platform, backend] : layer.fallback_backends) {
      selection_rule rule = make_rule(backend.source, backend.value);
      rule.platforms = {platform};
      append(result.rules, std::move(rule));
    }
  }
  threshold_expansion thresholds;
  for (const config_layer& layer : layers) {
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
  for (const config_layer& layer : layers) {
    if (layer.forced_rule) result.rules = {*layer.forced_rule};
  }
  return result;
}

configuration subcommunicator_configuration(const configuration& parent, const std::string& creator,
                                            const char* use) {
  const auto uses_creator = [&](const selection_rule& each) { return each.backend == creator; };
  configuration result = parent;
  result.check = false;
  std::erase_if(result.rules, uses_creator);
  if (result.rules.empty()) {
    result.rules = merge({built_in_defaults()}).rules;
    std::erase_if(result.rules, uses_creator);
  }
  if (use != nullptr) result.rules.push_back(make_override_rule(creator, use));
  return result;
}

std::string configuration::canonical() const {
  std::string text;
  for (const selection_rule& rule : rules) text += fmt::format("rule {}\n", rule.text);
  for (const auto& [name, platform] : sycl_backends)
    text += fmt::format("sycl_backend {}={}\n", name, platform_names()[platform]);
  for (const auto& [key, value] : options) {
    // The debug format escapes line breaks, so that each item stays on one line.
    text += fmt::format("option {}={:?}\n", key, value);
  }
  if (check) text += "check\n";
  if (deterministic) text += "deterministic\n";
  return text;
}

}  // namespace isthmus::selection
