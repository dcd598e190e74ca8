// The compute side of the job: a producer of random inputs, a poisoner, and a consumer of the results, on
// USM and on buffers. With a SYCL device compiler they are ordinary kernels; without one (g++ with the
// SYCL runtime of PyPI) the runtime compiler builds the same code when the job starts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <sycl/sycl.hpp>

namespace sycl_collectives {

using float_buffer = sycl::buffer<float, 1>;

class kernels {
 public:
  // Compiles for the queue's device; throws sycl::exception with the compiler's log.
  explicit kernels(const sycl::queue& queue);
  ~kernels();
  kernels(const kernels&) = delete;
  kernels& operator=(const kernels&) = delete;

  // "single source" or "runtime compiler".
  static std::string how_compiled();

  // data[i] = random float i of stream `key`, for i < count. Asynchronous.
  sycl::event fill(sycl::queue& queue, float* data, std::uint64_t count, std::uint32_t key) const;
  sycl::event fill(sycl::queue& queue, float_buffer& data, std::uint64_t count, std::uint32_t key) const;
  // data[i] = poison, for i < count.
  sycl::event poison(sycl::queue& queue, float* data, std::uint64_t count) const;
  sycl::event poison(sycl::queue& queue, float_buffer& data, std::uint64_t count) const;
  // data[i] = consumed(data[i]), for i < count.
  sycl::event consume(sycl::queue& queue, float* data, std::uint64_t count) const;
  sycl::event consume(sycl::queue& queue, float_buffer& data, std::uint64_t count) const;

 private:
  struct implementation;
  std::unique_ptr<implementation> m_implementation;
};

}  // namespace sycl_collectives
