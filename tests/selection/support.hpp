// Test fixtures for the configuration: a temporary folder and an environment without ISTHMUS_* variables.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "selection/selection.hpp"

namespace isthmus::selection {

// Fixture for tests that read files and variables. Runs in an empty folder, which is also the user's
// configuration folder, and restores folder and environment.
class configured : public ::testing::Test {
 protected:
  configured() : m_previous(std::filesystem::current_path()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "isthmus-selection-XXXXXX").string();
    m_folder = mkdtemp(pattern.data());
    std::filesystem::current_path(m_folder);
    for (const char* name : {"ISTHMUS_CONFIG", "ISTHMUS_PROFILE", "ISTHMUS_THRESHOLD",
                             "ISTHMUS_DEFAULT_BACKEND", "ISTHMUS_TIMEOUT_S", "ISTHMUS_RULE", "ISTHMUS_BACKEND",
                             "ISTHMUS_MEMORY_PROVIDER", "ISTHMUS_MEMORY_POOL"})
      set(name, nullptr);
    set("XDG_CONFIG_HOME", (m_folder / "xdg").c_str());
  }

  ~configured() override {
    for (const auto& [name, value] : m_saved) assign(name, value ? value->c_str() : nullptr);
    std::filesystem::current_path(m_previous);
    std::filesystem::remove_all(m_folder);
  }

  // Sets a variable, or removes it with nullptr.
  void set(const std::string& name, const char* value) {
    const char* before = std::getenv(name.c_str());
    m_saved.try_emplace(name, before ? std::optional<std::string>(before) : std::nullopt);
    assign(name, value);
  }

  // Writes a file and returns its name.
  static std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = name;
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return name;
  }

  std::filesystem::path m_folder;

 private:
  static void assign(const std::string& name, const char* value) {
    if (value == nullptr)
      unsetenv(name.c_str());
    else
      setenv(name.c_str(), value, 1);
  }

  std::filesystem::path m_previous;
  std::map<std::string, std::optional<std::string>> m_saved;
};

// The error that `function` throws as "message | hint". Checks its status.
template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const error& failure) {
    EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_CONFIG);
    return std::string(failure.info().message) + " | " + failure.info().hint;
  }
  return "no error";
}

// The texts of all rules, weakest first.
inline std::vector<std::string> texts(const std::vector<selection_rule>& rules) {
  std::vector<std::string> result;
  for (const selection_rule& rule : rules) result.push_back(rule.text);
  return result;
}

inline std::vector<std::string> sources(const std::vector<selection_rule>& rules) {
  std::vector<std::string> result;
  for (const selection_rule& rule : rules) result.push_back(rule.source);
  return result;
}

}  // namespace isthmus::selection
