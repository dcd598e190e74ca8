#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <filesystem>

// toml++ 3.3 asserts that a table header starts with a key before it checks it: "[=" in a file would end the
// process in a debug build. Its own check, which comes next, gives the error that is wanted.
#define TOML_ASSERT(expression) static_assert(true)
#include <toml++/toml.h>

#include "runtime/error.hpp"
#include "selection/grammar.hpp"
#include "selection/layer.hpp"

namespace isthmus::selection {
namespace {

using namespace std::string_view_literals;

constexpr std::array top_level_keys = {"default_backend"sv, "threshold"sv, "timeout_s"sv,
                                       "sycl_backends"sv,   "platform"sv,  "plugins"sv,
                                       "backend"sv,         "memory"sv,    "rule"sv};
constexpr std::array platform_keys = {"backend"sv};
constexpr std::array memory_keys = {"provider"sv, "pool"sv, "pool_max_bytes"sv, "pool_keep_bytes"sv};

const char* type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "a list";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a floating-point number";
    case toml::node_type::boolean: return "a boolean";
    case toml::node_type::date: return "a date";
    case toml::node_type::time: return "a time";
    case toml::node_type::date_time: return "a date and time";
    case toml::node_type::none: break;
  }
  return "nothing";
}

// Walks one document. Every value is handled inside `at`, which adds the place to what goes wrong.
class reader {
 public:
  reader(const std::string& name, std::string_view kind) : m_name(name), m_kind(kind) {}

  layer read(const toml::table& document) {
    for (auto&& [key, node] : document) top_level(key, node);
    return std::move(m_layer);
  }

 private:
  [[noreturn]] void fail(const toml::source_region& place, const std::string& message,
                         const std::string& hint = {}) const {
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                     fmt::format("{}:{}:{}: {}", m_name, place.begin.line, place.begin.column, message), hint);
  }

  [[noreturn]] void fail(const toml::source_region& place, const grammar_error& what) const {
    fail(place, what.message, what.hint);
  }

  template <typename Function>
  auto at(const toml::source_region& place, Function&& function) const {
    try {
      return function();
    } catch (const grammar_error& what) {
      fail(place, what);
    }
  }

  // Spelled as rule::source says; `setting` names the shorthand that a rule came from.
  std::string source(const toml::source_region& place, std::string_view setting = {}) const {
    std::string text =
        m_kind == "default" ? "default" : fmt::format("{} {}:{}", m_kind, m_name, place.begin.line);
    if (!setting.empty()) text += fmt::format(", {}", setting);
    return text;
  }

  const toml::table& as_table(std::string_view key, const toml::node& node, std::string_view example) const {
    if (const auto* table = node.as_table()) return *table;
    fail(node.source(), fmt::format("{} is {}, must be a table", key, type_name(node)),
         fmt::format("write {}", example));
  }

  std::string as_string(std::string_view key, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    fail(node.source(), fmt::format("{} is {}, must be a string", key, type_name(node)));
  }

  // Numbers may be written with or without quotes, as sizes with units need them.
  std::string as_string_or_integer(std::string_view key, const toml::node& node) const {
    if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
    if (const auto* text = node.as_string()) return text->get();
    fail(node.source(), fmt::format("{} is {}, must be an integer or a string", key, type_name(node)));
  }

  void top_level(const toml::key& key, const toml::node& node) {
    const std::string_view name = key.str();
    if (name == "default_backend") {
      m_layer.default_backend = {
          at(node.source(), [&] { return parse_identifier("backend", as_string(name, node)); }),
          source(node.source(), name)};
    } else if (name == "threshold") {
      m_layer.threshold = {at(node.source(), [&] { return parse_threshold(as_string_or_integer(name, node)); }),
                           source(node.source(), name)};
    } else if (name == "timeout_s") {
      m_layer.timeout_s = timeout(node);
    } else if (name == "sycl_backends") {
      sycl_backends(as_table(name, node, "[sycl_backends]"));
    } else if (name == "platform") {
      platforms(as_table(name, node, "[platform.cuda]"));
    } else if (name == "plugins") {
      plugins(as_table(name, node, "[plugins]"));
    } else if (name == "backend") {
      backends(as_table(name, node, "[backend.host]"));
    } else if (name == "memory") {
      memory(as_table(name, node, "[memory]"));
    } else if (name == "rule") {
      rules(node);
    } else {
      fail(key.source(), unknown_name("key", top_level_keys, name));
    }
  }

  double timeout(const toml::node& node) const {
    if (!node.is_number())
      fail(node.source(), fmt::format("timeout_s is {}, must be a number", type_name(node)));
    return at(node.source(), [&] { return parse_seconds(fmt::format("{}", *node.value<double>())); });
  }

  void sycl_backends(const toml::table& table) {
    for (auto&& [key, node] : table) {
      if (key.str().empty()) fail(key.source(), "empty name or number of a sycl::backend");
      m_layer.sycl_backends.emplace_back(key.str(), at(node.source(), [&, &value = node] {
                                           return parse_platform(as_string(key.str(), value));
                                         }));
    }
  }

  void platforms(const toml::table& table) {
    for (auto&& [key, node] : table) {
      const isthmus_platform platform = at(key.source(), [&] { return parse_platform(key.str()); });
      for (auto&& [inner, value] : as_table(key.str(), node, fmt::format("[platform.{}]", key.str()))) {
        if (inner.str() != "backend") fail(inner.source(), unknown_name("key", platform_keys, inner.str()));
        m_layer.vendor_backends.emplace_back(
            platform, placed<std::string>{at(value.source(),
                                             [&, &value = value] {
                                               return parse_identifier("backend", as_string("backend", value));
                                             }),
                                          source(value.source(), fmt::format("platform.{}", key.str()))});
      }
    }
  }

  void plugins(const toml::table& table) {
    for (auto&& [key, node] : table) {
      const std::string name = at(key.source(), [&] { return parse_identifier("plug-in", key.str()); });
      const std::filesystem::path path = as_string(name, node);
      if (path.empty()) fail(node.source(), fmt::format("the path of plug-in {} is empty", name));
      // A bare file name is left to the loader's search path, as dlopen does.
      const bool relative = path.is_relative() && path.has_parent_path();
      const auto folder = std::filesystem::path(m_name).parent_path();
      m_layer.plugins.emplace_back(name, (relative ? folder / path : path).string());
    }
  }

  void backends(const toml::table& table) {
    for (auto&& [key, node] : table) {
      const std::string name = at(key.source(), [&] { return parse_identifier("backend", key.str()); });
      for (auto&& [option, value] : as_table(name, node, fmt::format("[backend.{}]", name))) {
        const std::string option_name =
            at(option.source(), [&] { return parse_identifier("option", option.str()); });
        m_layer.options.emplace_back(fmt::format("backend.{}.{}", name, option_name),
                                     scalar(option.str(), value));
      }
    }
  }

  void memory(const toml::table& table) {
    for (auto&& [key, node] : table) {
      const std::string_view name = key.str();
      const auto bytes = [&, &value = node] {
        return at(value.source(), [&] { return parse_size(as_string_or_integer(name, value)); });
      };
      if (name == "provider") {
        m_layer.memory.providers = {providers(node), source(node.source(), "memory.provider")};
      } else if (name == "pool") {
        const auto* flag = node.as_boolean();
        if (flag == nullptr) fail(node.source(), fmt::format("pool is {}, must be a boolean", type_name(node)));
        m_layer.memory.pool = flag->get();
      } else if (name == "pool_max_bytes") {
        m_layer.memory.pool_max_bytes = bytes();
      } else if (name == "pool_keep_bytes") {
        m_layer.memory.pool_keep_bytes = bytes();
      } else {
        fail(key.source(), unknown_name("key", memory_keys, name));
      }
    }
  }

  std::vector<std::string> providers(const toml::node& node) const {
    std::vector<std::string> words;
    const auto add = [&](const toml::node& word) {
      at(word.source(), [&] { add_provider(words, as_string("provider", word)); });
    };
    if (const auto* list = node.as_array()) {
      if (list->empty()) fail(node.source(), "provider is an empty list, which would leave no memory at all");
      for (const toml::node& word : *list) add(word);
    } else {
      add(node);
    }
    return words;
  }

  // Backends parse their options themselves: they get text.
  std::string scalar(std::string_view key, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
    if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
    if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
    fail(node.source(), fmt::format("{} is {}, must be a string, a number or a boolean", key, type_name(node)));
  }

  void rules(const toml::node& node) {
    const auto* list = node.as_array();
    if (list == nullptr)
      fail(node.source(), fmt::format("rule is {}, must be a list of tables", type_name(node)),
           "write [[rule]] with two brackets");
    for (const toml::node& item : *list) m_layer.rules.push_back(one_rule(item));
  }

  rule one_rule(const toml::node& node) const {
    rule result;
    result.source = source(node.source());
    for (auto&& [key, value] : as_table("rule", node, "[[rule]]")) {
      const std::string_view field = key.str();
      at(key.source(), [&] { parse_name("key", rule_fields(), field); });
      if (const auto* list = value.as_array(); list != nullptr && is_list_field(field)) {
        if (list->empty())
          fail(value.source(), fmt::format("{} is an empty list, which would match nothing", field),
               fmt::format("leave {} out to match everything", field));
        for (const toml::node& item : *list) {
          at(item.source(), [&] { set_field(result, field, as_string(field, item)); });
        }
      } else {
        at(value.source(), [&, &value = value] { set_field(result, field, field_text(field, value)); });
      }
    }
    at(node.source(), [&] { finish_rule(result); });
    return result;
  }

  std::string field_text(std::string_view field, const toml::node& node) const {
    if (field == "ranks" || field == "nodes") return as_string_or_integer(field, node);
    if (!is_list_field(field) || node.is_string()) return as_string(field, node);
    fail(node.source(), fmt::format("{} is {}, must be a string or a list of strings", field, type_name(node)));
  }

  const std::string& m_name;
  std::string_view m_kind;
  layer m_layer;
};

}  // namespace

layer read_toml(std::string_view text, const std::string& name, std::string_view kind) {
  toml::table document;
  try {
    document = toml::parse(text, name);
  } catch (const toml::parse_error& failure) {
    const auto& place = failure.source().begin;
    throw make_error(
        ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
        fmt::format("{}:{}:{}: not TOML: {}", name, place.line, place.column, failure.description()),
        "see https://toml.io for TOML, docs/selection.md for the keys");
  }
  layer result = reader(name, kind).read(document);
  if (kind != "default") result.file = name;
  return result;
}

}  // namespace isthmus::selection
