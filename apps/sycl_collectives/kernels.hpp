// The kernels of the program on USM and on buffers: a producer of random inputs, a poisoner, and a
// consumer of results.
#pragma once

#include <cstdint>
#include <sycl/sycl.hpp>

#include "launcher.hpp"
#include "oracle/generator.hpp"
// after the generator, which it uses
#include "device_code.hpp"
#include "sycl_collectives/device_text.hpp"  // generated

namespace sycl_collectives {

using float_buffer = sycl::buffer<float, 1>;

// The kernels; asynchronous. Data is float* or float_buffer.
class job_kernels {
 public:
  // Compiles the kernels for the queue's device; throws sycl::exception with the compiler's log.
  explicit job_kernels(const sycl::queue& queue)
      : m_launcher(queue, device_text,
                   {apps::source_of<filler>(), apps::source_of<poisoner>(), apps::source_of<consumer>()}) {}

  static const char* compilation_mode() { return apps::launcher::compilation_mode(); }

  // data[i] = random float i of stream `key`, for i < count.
  template <typename Data>
  sycl::event fill(const sycl::queue& queue, Data& data, std::uint64_t count, std::uint32_t key) const {
    return run(queue, filler{key}, data, count);
  }
  // data[i] = poison, for i < count.
  template <typename Data>
  sycl::event poison(const sycl::queue& queue, Data& data, std::uint64_t count) const {
    return run(queue, poisoner{}, data, count);
  }
  // data[i] = consumed(data[i]), for i < count.
  template <typename Data>
  sycl::event consume(const sycl::queue& queue, Data& data, std::uint64_t count) const {
    return run(queue, consumer{}, data, count);
  }

 private:
  static apps::array<float> view(float* data, std::uint64_t count) {
    return apps::array<float>({count * sizeof(float), std::nullopt, {std::shared_ptr<void>(), data}});
  }
  static apps::array<float> view(float_buffer& data, std::uint64_t count) {
    return apps::array<float>(
        {count * sizeof(float), data.reinterpret<unsigned char, 1>(sycl::range<1>(data.byte_size())), nullptr});
  }
  template <typename Body, typename Data>
  sycl::event run(const sycl::queue& queue, const Body& body, Data& data, std::uint64_t count) const {
    return m_launcher.run(queue, apps::linear_grid(count), body, {}, view(data, count));
  }

  apps::launcher m_launcher;
};

}  // namespace sycl_collectives
