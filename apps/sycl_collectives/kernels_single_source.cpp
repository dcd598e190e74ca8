// The kernels for a SYCL device compiler (icpx, clang++ -fsycl, acpp): one source for host and device.
#include "device_code.hpp"
#include "kernels.hpp"

namespace sycl_collectives {

struct kernels::implementation {};

kernels::kernels(const sycl::queue&) {}
kernels::~kernels() = default;
std::string kernels::how_compiled() { return "single source"; }

namespace {

sycl::nd_range<1> cover(std::uint64_t count) {
  constexpr std::size_t group_size = 256;
  const std::uint64_t groups = (count + group_size - 1) / group_size;
  return {sycl::range<1>(groups * group_size), sycl::range<1>(group_size)};
}

// Runs `body(data, i)` for every i < count on the device.
template <typename Body>
sycl::event for_each(sycl::queue& queue, float* data, std::uint64_t count, Body body) {
  if (count == 0) return {};
  return queue.parallel_for(cover(count), [=](sycl::nd_item<1> item) {
    const std::uint64_t i = item.get_global_id(0);
    if (i < count) body(data, i);
  });
}

template <typename Body>
sycl::event for_each(sycl::queue& queue, float_buffer& data, std::uint64_t count, Body body) {
  if (count == 0) return {};
  return queue.submit([&](sycl::handler& handler) {
    sycl::accessor accessor(data, handler, sycl::read_write);
    handler.parallel_for(cover(count), [=](sycl::nd_item<1> item) {
      const std::uint64_t i = item.get_global_id(0);
      if (i < count) body(accessor, i);
    });
  });
}

struct filler {
  std::uint32_t key;
  template <typename Data>
  void operator()(const Data& data, std::uint64_t i) const {
    data[i] = as_float(random_float_bits(key, static_cast<unsigned>(i)));
  }
};
struct poisoner {
  template <typename Data>
  void operator()(const Data& data, std::uint64_t i) const {
    data[i] = as_float(poison_bits);
  }
};
struct consumer {
  template <typename Data>
  void operator()(const Data& data, std::uint64_t i) const {
    data[i] = consumed(data[i]);
  }
};

}  // namespace

sycl::event kernels::fill(sycl::queue& queue, float* data, std::uint64_t count, std::uint32_t key) const {
  return for_each(queue, data, count, filler{key});
}
sycl::event kernels::fill(sycl::queue& queue, float_buffer& data, std::uint64_t count,
                          std::uint32_t key) const {
  return for_each(queue, data, count, filler{key});
}
sycl::event kernels::poison(sycl::queue& queue, float* data, std::uint64_t count) const {
  return for_each(queue, data, count, poisoner{});
}
sycl::event kernels::poison(sycl::queue& queue, float_buffer& data, std::uint64_t count) const {
  return for_each(queue, data, count, poisoner{});
}
sycl::event kernels::consume(sycl::queue& queue, float* data, std::uint64_t count) const {
  return for_each(queue, data, count, consumer{});
}
sycl::event kernels::consume(sycl::queue& queue, float_buffer& data, std::uint64_t count) const {
  return for_each(queue, data, count, consumer{});
}

}  // namespace sycl_collectives
