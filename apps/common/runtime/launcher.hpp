// Kernels for a plain C++ compiler: the SYCL runtime compiles their text when the program starts.
#pragma once

#include <cstring>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/kernel.hpp"
#include "common/memory_block.hpp"

namespace apps {

// Parameters as they reach any kernel.
struct kernel_parameters {
  unsigned long words[24] = {};
};

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

// What is compiled for one function object.
struct kernel_source {
  std::string name;
  std::vector<std::string> elements;
};
template <typename Body>
kernel_source source_of() {
  return {Body::name, arguments_of<decltype(&Body::operator())>::names()};
}

class launcher {
 public:
  // Throws sycl::exception with the compiler's log.
  launcher(const sycl::queue& queue, const char* device_text, const std::vector<kernel_source>& sources);

  static const char* how_compiled() { return "runtime compiler"; }

  // Runs `body` for every point of `grid`. All arrays are of one kind. Asynchronous.
  template <typename Body, typename... Elements>
  sycl::event run(sycl::queue queue, const grid& grid, const Body& body, const events& after,
                  const array<Elements>&... arrays) const {
    static_assert(sizeof(Body) <= sizeof(kernel_parameters) && std::is_trivially_copyable_v<Body>);
    kernel_parameters parameters;
    std::memcpy(parameters.words, &body, sizeof body);
    return submit(queue, Body::name, grid, parameters, after, {&arrays.block()...});
  }

 private:
  sycl::event submit(sycl::queue& queue, std::string_view name, const grid& grid,
                     const kernel_parameters& parameters, const events& after,
                     std::initializer_list<const memory_block*> blocks) const;

  struct variants {
    sycl::kernel usm, buffer;
  };
  std::map<std::string, variants, std::less<>> m_kernels;
};

}  // namespace apps
