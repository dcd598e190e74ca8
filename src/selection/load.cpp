// Finds and reads the sources of configuration in order.
#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/error.hpp"
#include "selection/defaults.hpp"
#include "selection/layer.hpp"
#include "selection/profile.hpp"

namespace isthmus::selection {
namespace {

// Where a file name came from, for the message when it cannot be read; "" when it was searched for.
struct named_file {
  std::string path;
  std::string named_by;
};

// nullopt when a searched file does not exist; every other failure is an error, never silence.
std::optional<std::string> read_file(const named_file& file) {
  errno = 0;
  std::ifstream stream(file.path);
  std::ostringstream text;
  if (stream && !std::filesystem::is_directory(file.path))
    text << stream.rdbuf();
  else if (stream)
    errno = EISDIR;
  const int code = errno;
  if (stream && code != EISDIR) return text.str();
  if (file.named_by.empty() && (code == ENOENT || code == ENOTDIR)) return std::nullopt;
  throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                   fmt::format("cannot read {}{}: {}", file.path,
                               file.named_by.empty() ? "" : fmt::format(" (named by {})", file.named_by),
                               std::strerror(code)),
                   file.named_by.empty() ? "" : "correct the path, or leave it out", code);
}

// The value of a variable; "" when it is not set.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The first of the candidates that exists.
std::optional<layer> read_first(const std::vector<named_file>& candidates, std::string_view kind) {
  for (const named_file& file : candidates) {
    if (const auto text = read_file(file)) return read_toml(*text, file.path, kind);
  }
  return std::nullopt;
}

std::vector<named_file> profile_candidates() {
  const std::string named = variable("ISTHMUS_PROFILE");
  if (named == "none") return {};
  if (!named.empty()) return {{named, "ISTHMUS_PROFILE"}};
  const std::string path = profile_path(this_machine());
  if (path.empty()) return {};
  return {{path, ""}};
}

std::vector<named_file> config_candidates(const char* config_path) {
  if (config_path != nullptr && *config_path != '\0') return {{config_path, "config_path"}};
  const std::string named = variable("ISTHMUS_CONFIG");
  if (named == "none") return {};
  if (!named.empty()) return {{named, "ISTHMUS_CONFIG"}};
  std::vector<named_file> searched = {{"isthmus.toml", ""}};
  const std::string folder = user_config_folder();
  if (!folder.empty()) searched.push_back({folder + "/isthmus.toml", ""});
  searched.push_back({"/etc/isthmus/isthmus.toml", ""});
  return searched;
}

}  // namespace

configuration load_configuration(const char* config_path) {
  std::vector<layer> layers;
  layers.push_back(read_toml(default_configuration, "defaults.toml", "default"));
  if (auto profile = read_first(profile_candidates(), "profile")) layers.push_back(std::move(*profile));
  if (auto config = read_first(config_candidates(config_path), "config")) layers.push_back(std::move(*config));
  layers.push_back(read_environment());
  return merge(layers);
}

}  // namespace isthmus::selection
