#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/trust.hpp"
#include "selection/grammar.hpp"
#include "selection/layer.hpp"

namespace isthmus::selection {
namespace {

using std::string_view_literals::operator""sv;

// All variables that Isthmus, its front ends and its Python package read (docs/reference/configuration.md).
constexpr std::array known_variables = {
    "ISTHMUS_BACKEND"sv,
    "ISTHMUS_BLAS_LIBRARY"sv,
    "ISTHMUS_CACHE_DIR"sv,
    "ISTHMUS_CHECK"sv,
    "ISTHMUS_CONFIG"sv,
    "ISTHMUS_CUBLASLT_LIBRARY"sv,
    "ISTHMUS_CUDA_DRIVER_LIBRARY"sv,
    "ISTHMUS_CUDA_RUNTIME_LIBRARY"sv,
    "ISTHMUS_DEFAULT_BACKEND"sv,
    "ISTHMUS_DETERMINISTIC"sv,
    "ISTHMUS_DMA_ALLGATHER"sv,
    "ISTHMUS_DMA_ALLGATHER_MAX_BYTES"sv,
    "ISTHMUS_GGML_WIRE"sv,
    "ISTHMUS_HIPBLASLT_LIBRARY"sv,
    "ISTHMUS_HIPRTC_LIBRARY"sv,
    "ISTHMUS_HIP_RUNTIME_LIBRARY"sv,
    "ISTHMUS_LEVEL_ZERO_LIBRARY"sv,
    "ISTHMUS_LOG"sv,
    "ISTHMUS_MEMORY_POOL"sv,
    "ISTHMUS_MEMORY_PROVIDER"sv,
    "ISTHMUS_MPI_ALL_RANKS"sv,
    "ISTHMUS_MPI_ATTACH_MS"sv,
    "ISTHMUS_MPI_REPORT"sv,
    "ISTHMUS_NCCL"sv,
    "ISTHMUS_NCCL_ATTACH_S"sv,
    "ISTHMUS_NCCL_LIBRARY"sv,
    "ISTHMUS_NCCL_REPORT"sv,
    "ISTHMUS_NODE"sv,
    "ISTHMUS_NVRTC_LIBRARY"sv,
    "ISTHMUS_ONECCL_LIBRARY"sv,
    "ISTHMUS_OPTION"sv,
    "ISTHMUS_PLUGIN_PATH"sv,
    "ISTHMUS_PROFILE"sv,
    "ISTHMUS_RCCL_LIBRARY"sv,
    "ISTHMUS_RULE"sv,
    "ISTHMUS_THRESHOLD"sv,
    "ISTHMUS_TIMEOUT_S"sv,
    "ISTHMUS_TRACE"sv,
    "ISTHMUS_TRACE_CALLS"sv,
    "ISTHMUS_UCX_LIBRARY"sv,
    "ISTHMUS_UMF_LIBRARY"sv,
};
// Variables that Isthmus sets for its own processes, and those of CMake's find_package.
constexpr std::array known_prefixes = {"ISTHMUS_TEST_"sv,         "ISTHMUS_BENCH_"sv, "ISTHMUS_DOCTOR_"sv,
                                       "ISTHMUS_TORCH_ELASTIC"sv, "ISTHMUS_ROOT"sv,   "ISTHMUS_DIR"sv};

bool is_known(std::string_view name) {
  return std::ranges::find(known_variables, name) != known_variables.end() ||
         std::ranges::any_of(known_prefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// Splits at any of the separators and trims each field. Empty fields are kept.
std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> items;
  for (;;) {
    const auto end = text.find_first_of(separators);
    items.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return items;
    text.remove_prefix(end + 1);
  }
}

// Calls function(value) if the variable is set and not blank.
template <typename Function>
void read_variable(const char* variable, Function&& function) {
  const char* value = environment_variable(variable);
  if (value == nullptr || trim(value).empty()) return;
  try {
    function(trim(value));
  } catch (const grammar_error& failure) {
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                     fmt::format("environment {}: {}", variable, failure.message), failure.hint);
  }
}

// Parses a rule such as "collective=allreduce,reduce bytes=0..64K use=shm:packet".
selection_rule parse_rule(std::string_view text) {
  selection_rule result;
  std::vector<std::string_view> seen_fields;
  for (std::string_view word : split(text, " \t\r\n")) {
    if (word.empty()) continue;
    const auto separator = word.find('=');
    if (separator == std::string_view::npos)
      throw grammar_error{fmt::format("\"{}\" is not KEY=VALUE", word), ""};
    const std::string_view field = word.substr(0, separator);
    const std::string_view value = word.substr(separator + 1);
    if (std::find(seen_fields.begin(), seen_fields.end(), field) != seen_fields.end())
      throw grammar_error{fmt::format("{} is given twice", field),
                          is_list_field(field) ? "separate its values with commas" : ""};
    seen_fields.push_back(field);
    if (is_list_field(field)) {
      for (std::string_view item : split(value, ",")) set_field(result, field, item);
    } else {
      set_field(result, field, value);
    }
  }
  finish_rule(result);
  return result;
}

std::vector<selection_rule> parse_rules(std::string_view text, const std::string& source) {
  std::vector<selection_rule> rules;
  std::size_t position = 0;
  for (std::string_view item : split(text, ";")) {
    ++position;
    if (item.empty()) continue;  // a trailing semicolon
    try {
      rules.push_back(parse_rule(item));
      rules.back().source = source;
    } catch (grammar_error& failure) {
      failure.message = fmt::format("rule {} \"{}\": {}", position, item, failure.message);
      throw;
    }
  }
  return rules;
}

// Parses options such as "backend.copy_engine.staging_bytes=64; backend.NAME.OPTION=VALUE".
std::vector<std::pair<std::string, std::string>> parse_options(std::string_view text) {
  constexpr const char* syntax_hint = "write backend.NAME.OPTION=VALUE and separate options with ';'";
  std::vector<std::pair<std::string, std::string>> options;
  for (std::string_view item : split(text, ";")) {
    if (item.empty()) continue;  // a trailing semicolon
    const auto separator = item.find('=');
    const auto words = split(item.substr(0, separator), ".");
    if (separator == std::string_view::npos || words.size() != 3 || words.front() != "backend")
      throw grammar_error{fmt::format("\"{}\" is not a backend option", item), syntax_hint};
    options.emplace_back(fmt::format("backend.{}.{}", parse_identifier("backend", words[1]),
                                     parse_identifier("option", words[2])),
                         trim(item.substr(separator + 1)));
  }
  return options;
}

}  // namespace

void warn_about_unknown_variables() {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> reported;
  const std::scoped_lock lock(mutex);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("ISTHMUS_") || is_known(name) || environment_variable(name.c_str()) == nullptr ||
        !reported.insert(name).second)
      continue;
    std::string message = fmt::format("environment: variable {} is unknown and has no effect", name);
    // Users derive this name from ISTHMUS_MPI_REPORT and ISTHMUS_NCCL_REPORT, which are the nearest names.
    const std::string hint = name == "ISTHMUS_TORCH_REPORT"
                                 ? "run the script with isthmus run --torch --report, or with -m isthmus.torch "
                                   "--report under torchrun, or call isthmus.torch.print_report() in it"
                                 : unknown_name("variable", known_variables, name).hint;
    if (!hint.empty()) message += "; " + hint;
    log(log_level::warning, "{}", message);
  }
}

config_layer read_environment() {
  config_layer result;
  read_variable("ISTHMUS_DEFAULT_BACKEND", [&](std::string_view value) {
    result.default_backend = {parse_identifier("backend", value), "environment ISTHMUS_DEFAULT_BACKEND"};
  });
  read_variable("ISTHMUS_THRESHOLD", [&](std::string_view value) {
    result.threshold = {parse_threshold(value), "environment ISTHMUS_THRESHOLD"};
  });
  read_variable("ISTHMUS_TIMEOUT_S", [&](std::string_view value) { result.timeout_s = parse_seconds(value); });
  const auto parse_boolean = [](std::string_view name, std::string_view value) {
    return value == "1" || (value != "0" && parse_flag(name, value));
  };
  read_variable("ISTHMUS_CHECK", [&](std::string_view value) { result.check = parse_boolean("check", value); });
  read_variable("ISTHMUS_DETERMINISTIC",
                [&](std::string_view value) { result.deterministic = parse_boolean("deterministic", value); });
  read_variable("ISTHMUS_RULE",
                [&](std::string_view value) { result.rules = parse_rules(value, "environment ISTHMUS_RULE"); });
  read_variable("ISTHMUS_OPTION", [&](std::string_view value) { result.options = parse_options(value); });
  read_variable("ISTHMUS_MEMORY_PROVIDER", [&](std::string_view value) {
    std::vector<std::string> providers;
    for (std::string_view word : split(value, ",")) add_provider(providers, word);
    result.memory.providers = {std::move(providers), "environment ISTHMUS_MEMORY_PROVIDER"};
  });
  read_variable("ISTHMUS_MEMORY_POOL",
                [&](std::string_view value) { result.memory.pool = parse_flag("pool", value); });
  read_variable("ISTHMUS_BACKEND", [&](std::string_view value) {
    selection_rule forced_rule;
    forced_rule.source = "environment ISTHMUS_BACKEND";
    set_field(forced_rule, "use", value);
    finish_rule(forced_rule);
    result.forced_rule = std::move(forced_rule);
  });
  return result;
}

}  // namespace isthmus::selection
