// gpu/device.hpp for SYCL's CPU device: a stream is an in-order queue, and memory is USM that
// the host can access.
#include <cstring>
#include <sycl/sycl.hpp>

#include "gpu/device.hpp"

namespace gpu {
namespace {

sycl::queue& any_queue() {
  static sycl::queue only{sycl::cpu_selector_v, sycl::property::queue::in_order()};
  return only;
}

}  // namespace

int device_count() { return static_cast<int>(sycl::device::get_devices(sycl::info::device_type::cpu).size()); }
void use_device(int) {}

stream::stream(int) : m_stream(new sycl::queue(any_queue())) {}
stream::~stream() { delete static_cast<sycl::queue*>(m_stream); }
void stream::synchronize() const { static_cast<sycl::queue*>(m_stream)->wait_and_throw(); }

buffer::buffer(std::size_t bytes) : m_bytes(bytes) {
  if (bytes != 0) m_data = sycl::malloc_host<std::byte>(bytes, any_queue());
}
buffer::~buffer() { sycl::free(m_data, any_queue()); }

void buffer::write(std::span<const std::byte> from, const stream& order, std::size_t offset) {
  order.synchronize();
  if (!from.empty()) std::memcpy(m_data + offset, from.data(), from.size());
}

std::vector<std::byte> buffer::read(const stream& order) const {
  order.synchronize();
  return {m_data, m_data + m_bytes};
}

}  // namespace gpu
