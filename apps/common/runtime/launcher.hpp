// Kernels for a plain C++ compiler: the SYCL runtime compiles their text at program start, or NVRTC does on
// CUDA devices, for which the runtime has no compiler.
#pragma once

#include <cstring>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/runtime/native_kernels.hpp"

namespace apps {

template <typename T>
constexpr const char* element_name() {
  using value = std::remove_const_t<T>;
  if constexpr (std::is_same_v<value, float>) return "float";
  if constexpr (std::is_same_v<value, double>) return "double";
  if constexpr (std::is_same_v<value, unsigned>) return "unsigned";
  if constexpr (std::is_same_v<value, unsigned long>) return "unsigned long";
}

template <typename Function>
struct arguments_of;
template <typename Body, typename... Elements>
struct arguments_of<void (Body::*)(unsigned long, unsigned long, Elements*...) const> {
  static std::vector<std::string> names() { return {element_name<Elements>()...}; }
};

template <typename Body>
kernel_source source_of() {
  return {Body::name, arguments_of<decltype(&Body::operator())>::names()};
}

class launcher {
 public:
  // Throws sycl::exception or std::runtime_error with the compiler's log.
  launcher(const sycl::queue& queue, const char* device_text, const std::vector<kernel_source>& sources);

  static const char* compilation_mode() { return "runtime compiler"; }

  // Runs `body` for every point of `grid`, asynchronously. All arrays are buffers, or all are USM.
  template <typename Body, typename... Elements>
  sycl::event run(sycl::queue queue, const grid& grid, const Body& body, const events& wait_events,
                  const array<Elements>&... arrays) const {
    static_assert(sizeof(Body) <= sizeof(kernel_parameters) && std::is_trivially_copyable_v<Body>);
    kernel_parameters parameters;
    std::memcpy(parameters.words, &body, sizeof body);
    return submit(queue, Body::name, grid, parameters, wait_events, {&arrays.block()...});
  }

 private:
  sycl::event submit(sycl::queue& queue, std::string_view name, const grid& grid,
                     const kernel_parameters& parameters, const events& wait_events,
                     std::initializer_list<const memory_block*> blocks) const;

  struct variants {
    sycl::kernel usm, buffer;
  };
  std::map<std::string, variants, std::less<>> m_kernels;
  std::optional<native_kernels> m_native;  // instead of m_kernels
};

}  // namespace apps
