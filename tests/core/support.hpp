// Helpers for tests of the runtime: communicators on the stand-in backend, errors as values, scoped files.
#pragma once

#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "standins/backend/standin_backend.hpp"
#include "topology/threads.hpp"

namespace test {

inline isthmus_error_info last_error() {
  isthmus_error_info info;
  isthmus_last_error(&info);
  return info;
}

// A temporary file, removed by the destructor.
class scoped_file {
 public:
  explicit scoped_file(const std::string& text, const std::string& suffix = ".toml") {
    static std::atomic<int> number{0};
    m_path = std::filesystem::temp_directory_path() /
             ("isthmus-test-" + std::to_string(getpid()) + "-" + std::to_string(number++) + suffix);
    std::ofstream(m_path) << text;
  }
  ~scoped_file() { std::filesystem::remove(m_path); }
  scoped_file(const scoped_file&) = delete;
  scoped_file& operator=(const scoped_file&) = delete;
  std::string path() const { return m_path.string(); }

 private:
  std::filesystem::path m_path;
};

inline isthmus_communicator_options options_for(const scoped_file& config, double timeout_s = 10) {
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.timeout_s = timeout_s;
  static thread_local std::string path;
  path = config.path();
  options.config_path = path.c_str();
  return options;
}

// All ranks of one communicator in this process. The destructor destroys them.
class ranks {
 public:
  ranks(int size, const std::string& config, isthmus_platform platform = ISTHMUS_PLATFORM_HOST,
        double timeout_s = 10)
      : m_file(config), m_handles(static_cast<std::size_t>(size)) {
    std::vector<isthmus_device> devices(m_handles.size(), isthmus_device{platform, 0});
    const auto options = options_for(m_file, timeout_s);
    m_status = isthmus_communicator_create_all(size, devices.data(), &options, m_handles.data());
    if (m_status != ISTHMUS_SUCCESS) m_error = last_error();
  }
  ~ranks() {
    for (auto& handle : m_handles) isthmus_communicator_destroy(handle);
  }
  ranks(const ranks&) = delete;
  ranks& operator=(const ranks&) = delete;

  isthmus_communicator operator[](int rank) const { return m_handles[static_cast<std::size_t>(rank)]; }
  isthmus_status status() const { return m_status; }
  std::string message() const { return m_error.message; }
  int size() const { return static_cast<int>(m_handles.size()); }
  // Transfers ownership of the handle to the caller.
  isthmus_communicator release(int rank) {
    return std::exchange(m_handles[static_cast<std::size_t>(rank)], nullptr);
  }

 private:
  scoped_file m_file;
  std::vector<isthmus_communicator> m_handles;
  isthmus_status m_status;
  isthmus_error_info m_error{};
};

using topology::run_on_each_rank;

inline constexpr const char* host_config = "[[rule]]\nuse = \"shm\"\n";

}  // namespace test
