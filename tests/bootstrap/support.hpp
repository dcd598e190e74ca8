// Helpers shared by the bootstrap tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "topology/threads.hpp"

namespace test {

using topology::run_on_each_rank;

inline std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

inline std::string get(isthmus::store& store, const std::string& key, std::size_t size, double timeout_s) {
  std::string value(size, '\0');
  store.get(key, std::as_writable_bytes(std::span(value)), timeout_s);
  return value;
}

// The error that `job` throws; its status is ISTHMUS_SUCCESS if it throws none.
template <typename Job>
isthmus::failure_info error_of(Job&& job) {
  try {
    job();
  } catch (const isthmus::error& failure) {
    return failure.info();
  }
  return {};
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace test
