// Finds and reads the configuration sources in order.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"
#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/trust.hpp"
#include "selection/layer.hpp"
#include "selection/profile.hpp"

namespace isthmus::selection {
namespace {

constexpr std::size_t max_file_bytes = 1 << 20;  // bytes; the defaults have about 10,000

// A configuration file and the setting that names it, for error messages.
struct config_file {
  std::string path;
  std::string setting;                   // "" for default locations
  bool is_in_working_directory = false;  // default location in a folder that another user may have chosen
};

error read_error(const config_file& file, const std::string& reason, int code = 0) {
  return make_error(
      ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
      fmt::format("cannot read {}{}: {}", file.path,
                  file.setting.empty() ? "" : fmt::format(" (named by {})", file.setting), reason),
      file.setting.empty() ? "" : "correct the path or unset it", code);
}

// Reads at most the maximum file size. Accepts only regular files: others may block or be endless.
std::string read_descriptor(const config_file& file, int descriptor) {
  struct stat status{};
  if (fstat(descriptor, &status) != 0) throw read_error(file, std::strerror(errno), errno);
  if (S_ISDIR(status.st_mode)) throw read_error(file, std::strerror(EISDIR), EISDIR);
  if (!S_ISREG(status.st_mode))
    throw read_error(
        file, fmt::format("it is a {}, must be a regular file", S_ISFIFO(status.st_mode) ? "pipe" : "device"));
  std::string text(max_file_bytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = read(descriptor, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw read_error(file, std::strerror(errno), errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size > max_file_bytes)
    throw read_error(
        file, fmt::format("it has more than {} bytes, the limit for configuration files", max_file_bytes));
  text.resize(size);
  return text;
}

// Returns nullopt if a file at a default location does not exist. Every other failure is an error.
std::optional<std::string> read_file(const config_file& file) {
  const file_descriptor descriptor(open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (descriptor.get() < 0) {
    const int code = errno;
    if (file.setting.empty() && (code == ENOENT || code == ENOTDIR)) return std::nullopt;
    throw read_error(file, std::strerror(code), code);
  }
  return read_descriptor(file, descriptor.get());
}

// Returns the value of an environment variable, or "" if it is not set.
std::string variable(const char* name) {
  const char* value = environment_variable(name);
  return value == nullptr ? "" : value;
}

// Returns true if the option "backend.<name>.<option>" causes code to be loaded.
bool is_code_option(std::string_view key) { return key.ends_with("library") || key.ends_with("site_packages"); }

// Returns the first setting of a source that causes code to be loaded, or "" if there is none.
std::string find_code_setting(const config_layer& source) {
  if (!source.plugins.empty()) return fmt::format("the plug-in {}", source.plugins.front().first);
  for (const auto& [key, value] : source.options)
    if (is_code_option(key)) return fmt::format("the option {}", key);
  return "";
}

// Settings that load code are accepted only from files that no other user can modify, and never from a file
// that was found in the working directory.
void check_code_setting(const config_file& file, const config_layer& source) {
  const std::string code = find_code_setting(source);
  if (code.empty()) return;
  if (file.is_in_working_directory)
    throw make_error(
        ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
        fmt::format("{} sets {}, which is not allowed in a file that was found in the working directory",
                    file.path, code),
        fmt::format("if you trust the file, set ISTHMUS_CONFIG={}",
                    std::filesystem::absolute(file.path).string()));
  if (const std::string reason = check_trusted_path(file.path); !reason.empty())
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                     fmt::format("{} sets {}, but {}", file.path, code, reason),
                     "chown or chmod it, or move it to a folder that only you and root can write");
}

// Returns true for a file in the working directory that another user could have created.
bool is_ignored(const config_file& file) {
  std::error_code error_code;
  if (!file.is_in_working_directory || !std::filesystem::exists(file.path, error_code)) return false;
  const std::string reason = check_trusted_path(file.path);
  if (reason.empty()) return false;
  log(log_level::warning,
      "{} in the working directory is ignored: {}; if you trust the file, set ISTHMUS_CONFIG={}", file.path,
      reason, std::filesystem::absolute(file.path).string());
  return true;
}

// Reads the first candidate that exists and is not ignored.
std::optional<config_layer> read_first(const std::vector<config_file>& candidates, std::string_view kind) {
  for (const config_file& file : candidates) {
    if (is_ignored(file)) continue;
    if (const auto text = read_file(file)) {
      config_layer result = read_toml(*text, file.path, kind);
      check_code_setting(file, result);
      return result;
    }
  }
  return std::nullopt;
}

std::vector<config_file> profile_candidates() {
  const std::string path_setting = variable("ISTHMUS_PROFILE");
  if (path_setting == "none") return {};
  if (!path_setting.empty()) return {{path_setting, "ISTHMUS_PROFILE"}};
  const std::string path = profile_path(detect_machine());
  if (path.empty()) return {};
  return {{path, ""}};
}

std::vector<config_file> config_candidates(const char* config_path) {
  if (config_path != nullptr && *config_path != '\0') return {{config_path, "config_path"}};
  const std::string path_setting = variable("ISTHMUS_CONFIG");
  if (path_setting == "none") return {};
  if (!path_setting.empty()) return {{path_setting, "ISTHMUS_CONFIG"}};
  std::vector<config_file> default_files = {{"isthmus.toml", "", true}};
  const std::string folder = user_config_folder();
  if (!folder.empty()) default_files.push_back({folder + "/isthmus.toml", ""});
  default_files.push_back({"/etc/isthmus/isthmus.toml", ""});
  return default_files;
}

}  // namespace

configuration load_configuration(const char* config_path) {
  std::vector<config_layer> layers;
  layers.push_back(built_in_defaults());
  tuning_profile used_profile;
  if (auto profile = read_first(profile_candidates(), "profile")) {
    used_profile = {profile->file, profile->measured};
    layers.push_back(std::move(*profile));
  }
  if (auto config = read_first(config_candidates(config_path), "config")) layers.push_back(std::move(*config));
  warn_about_unknown_variables();
  layers.push_back(read_environment());
  configuration result = merge(layers);
  result.profile = std::move(used_profile);
  return result;
}

}  // namespace isthmus::selection
