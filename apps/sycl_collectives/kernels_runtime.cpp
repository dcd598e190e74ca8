// The kernels for a plain C++ compiler: the SYCL runtime compiles them when the job starts.
#include "device_text.hpp"  // generated: device_code.hpp as text
#include "kernels.hpp"

namespace sycl_collectives {

namespace exp = sycl::ext::oneapi::experimental;

namespace {

using float_accessor = sycl::accessor<float, 1, sycl::access_mode::read_write>;

sycl::nd_range<1> cover(std::uint64_t count) {
  constexpr std::size_t group_size = 256;
  const std::uint64_t groups = (count + group_size - 1) / group_size;
  return {sycl::range<1>(groups * group_size), sycl::range<1>(group_size)};
}

// The loops around the shared code, once for pointers and once for accessors.
constexpr const char* loops = R"(
#include <sycl/sycl.hpp>
namespace exp = sycl::ext::oneapi::experimental;
using float_accessor = sycl::accessor<float, 1>;
inline unsigned long here() { return sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_global_id(0); }

extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void fill_usm(float* data, unsigned long count, unsigned key) {
  const unsigned long i = here();
  if (i < count) data[i] = as_float(random_float_bits(key, static_cast<unsigned>(i)));
}
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void fill_buffer(float_accessor data, unsigned long count, unsigned key) {
  const unsigned long i = here();
  if (i < count) data[i] = as_float(random_float_bits(key, static_cast<unsigned>(i)));
}
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void poison_usm(float* data, unsigned long count) {
  const unsigned long i = here();
  if (i < count) data[i] = as_float(poison_bits);
}
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void poison_buffer(float_accessor data, unsigned long count) {
  const unsigned long i = here();
  if (i < count) data[i] = as_float(poison_bits);
}
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void consume_usm(float* data, unsigned long count) {
  const unsigned long i = here();
  if (i < count) data[i] = consumed(data[i]);
}
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void consume_buffer(float_accessor data, unsigned long count) {
  const unsigned long i = here();
  if (i < count) data[i] = consumed(data[i]);
}
)";

}  // namespace

struct kernels::implementation {
  sycl::kernel_bundle<sycl::bundle_state::executable> bundle;
  sycl::kernel fill_usm = bundle.ext_oneapi_get_kernel("fill_usm");
  sycl::kernel fill_buffer = bundle.ext_oneapi_get_kernel("fill_buffer");
  sycl::kernel poison_usm = bundle.ext_oneapi_get_kernel("poison_usm");
  sycl::kernel poison_buffer = bundle.ext_oneapi_get_kernel("poison_buffer");
  sycl::kernel consume_usm = bundle.ext_oneapi_get_kernel("consume_usm");
  sycl::kernel consume_buffer = bundle.ext_oneapi_get_kernel("consume_buffer");
};

namespace {

sycl::kernel_bundle<sycl::bundle_state::executable> compile(const sycl::queue& queue) {
  auto source = exp::create_kernel_bundle_from_source(queue.get_context(), exp::source_language::sycl,
                                                      std::string(device_text) + loops);
  return exp::build(source);
}

}  // namespace

kernels::kernels(const sycl::queue& queue) : m_implementation(new implementation{compile(queue)}) {}
kernels::~kernels() = default;
std::string kernels::how_compiled() { return "runtime compiler"; }

namespace {

// A count of zero has nothing to launch but is still a command of the queue.
template <typename... Arguments>
sycl::event launch(sycl::queue& queue, const sycl::kernel& kernel, std::uint64_t count, float* data,
                   Arguments... arguments) {
  if (count == 0) return {};
  return queue.submit([&](sycl::handler& handler) {
    handler.set_args(data, static_cast<unsigned long>(count), arguments...);
    handler.parallel_for(cover(count), kernel);
  });
}

template <typename... Arguments>
sycl::event launch(sycl::queue& queue, const sycl::kernel& kernel, std::uint64_t count, float_buffer& data,
                   Arguments... arguments) {
  if (count == 0) return {};
  return queue.submit([&](sycl::handler& handler) {
    float_accessor accessor(data, handler);
    handler.set_args(accessor, static_cast<unsigned long>(count), arguments...);
    handler.parallel_for(cover(count), kernel);
  });
}

}  // namespace

sycl::event kernels::fill(sycl::queue& queue, float* data, std::uint64_t count, std::uint32_t key) const {
  return launch(queue, m_implementation->fill_usm, count, data, key);
}
sycl::event kernels::fill(sycl::queue& queue, float_buffer& data, std::uint64_t count,
                          std::uint32_t key) const {
  return launch(queue, m_implementation->fill_buffer, count, data, key);
}
sycl::event kernels::poison(sycl::queue& queue, float* data, std::uint64_t count) const {
  return launch(queue, m_implementation->poison_usm, count, data);
}
sycl::event kernels::poison(sycl::queue& queue, float_buffer& data, std::uint64_t count) const {
  return launch(queue, m_implementation->poison_buffer, count, data);
}
sycl::event kernels::consume(sycl::queue& queue, float* data, std::uint64_t count) const {
  return launch(queue, m_implementation->consume_usm, count, data);
}
sycl::event kernels::consume(sycl::queue& queue, float_buffer& data, std::uint64_t count) const {
  return launch(queue, m_implementation->consume_buffer, count, data);
}

}  // namespace sycl_collectives
