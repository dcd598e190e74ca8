// The kernels of tensor_parallel.hpp, for SYCL compilers and, through DPC++'s runtime compiler, for
// plain C++ compilers.
#ifndef ISTHMUS_SYCL_TENSOR_KERNELS_HPP
#define ISTHMUS_SYCL_TENSOR_KERNELS_HPP

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <isthmus/sycl/features.hpp>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::detail {

// The format numbers of the device code below.
enum class tensor_format : std::uint32_t { float32 = 0, float16 = 1, bfloat16 = 2 };

/// Returns the format of a datatype; std::nullopt if the kernels do not support it.
inline std::optional<tensor_format> tensor_format_of(isthmus_datatype datatype) {
  if (datatype == ISTHMUS_FLOAT32) return tensor_format::float32;
  if (datatype == ISTHMUS_FLOAT16) return tensor_format::float16;
  if (datatype == ISTHMUS_BFLOAT16) return tensor_format::bfloat16;
  return std::nullopt;
}
inline std::size_t bytes_of(tensor_format format) { return format == tensor_format::float32 ? 4 : 2; }

// The arguments of one sum on one device.
struct tensor_sum {
  void* tensor;
  void* own;    // this device's contribution, in the wire format
  void* inbox;  // contributions of the other devices, slot_bytes apart
  std::uint64_t slot_bytes, count, active;
  std::uint32_t rank, size, wire, format;
};

// The arguments of one sum that the first device computes for all. A null source contributes zeros.
struct tensor_reduction {
  static constexpr std::size_t max_sources = 4;
  void *tensor, *copy;  // the results
  void* sources[max_sources];
  std::uint64_t count;
  std::uint32_t format;
};

// The device code, as code for SYCL compilers and as text for the runtime compiler. The macro ensures that
// both are identical.
#define ISTHMUS_SYCL_CODE_AND_TEXT(...)                           \
  inline constexpr const char* tensor_device_text = #__VA_ARGS__; \
  namespace tensor_device {                                       \
  __VA_ARGS__                                                     \
  }
ISTHMUS_SYCL_CODE_AND_TEXT(
    inline unsigned short to_bfloat16(float value) {
      const unsigned bits = __builtin_bit_cast(unsigned, value);
      if (value != value) return static_cast<unsigned short>(bits >> 16 | 0x40u);
      return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    } inline float load(const void* source, unsigned long i, unsigned format) {
      if (format == 0) return static_cast<const float*>(source)[i];
      if (format == 1) return static_cast<float>(static_cast<const sycl::half*>(source)[i]);
      return __builtin_bit_cast(float, static_cast<unsigned>(static_cast<const unsigned short*>(source)[i])
                                           << 16);
    } inline void store(void* destination, unsigned long i, unsigned format, float value) {
      if (format == 0)
        static_cast<float*>(destination)[i] = value;
      else if (format == 1)
        static_cast<sycl::half*>(destination)[i] = static_cast<sycl::half>(value);
      else
        static_cast<unsigned short*>(destination)[i] = to_bfloat16(value);
    } inline void narrow(unsigned long i, void* destination, const void* source) {
      static_cast<unsigned short*>(destination)[i] = to_bfloat16(static_cast<const float*>(source)[i]);
    } inline void add(unsigned long i, void* tensor, const void* own, const void* inbox,
                      unsigned long slot_bytes, unsigned long active, unsigned rank, unsigned size,
                      unsigned wire, unsigned format) {
      float sum = 0;
      for (unsigned r = 0; r < size; ++r) {
        if ((active >> r & 1ul) == 0) continue;
        const char* slot = static_cast<const char*>(inbox) + r * slot_bytes;
        sum += load(r == rank ? own : static_cast<const void*>(slot), i, wire);
      }
      if (wire == 2) sum = __builtin_bit_cast(float, static_cast<unsigned>(to_bfloat16(sum)) << 16);
      store(tensor, i, format, sum);
    } inline void reduce(unsigned long i, void* tensor, void* copy, const void* source0, const void* source1,
                         const void* source2, const void* source3, unsigned format) {
      float sum = 0;
      if (source0 != nullptr) sum += load(source0, i, format);
      if (source1 != nullptr) sum += load(source1, i, format);
      if (source2 != nullptr) sum += load(source2, i, format);
      if (source3 != nullptr) sum += load(source3, i, format);
      store(tensor, i, format, sum);
      store(copy, i, format, sum);
    })
#undef ISTHMUS_SYCL_CODE_AND_TEXT

/// Returns a range with at least `count` work-items, rounded up to whole work-groups. Kernels
/// check their index.
inline sycl::nd_range<1> work_range(std::uint64_t count) {
  constexpr std::size_t group = 256;
  return {sycl::range<1>((count + group - 1) / group * group), sycl::range<1>(group)};
}

#if defined(ISTHMUS_SYCL_DPCPP) && !defined(SYCL_LANGUAGE_VERSION)

// The kernels of one context, compiled for the queue's device by DPC++'s runtime compiler when the object is
// created, because this compiler is not a SYCL compiler (g++, or Clang without -fsycl). This takes 2 s;
// SYCL_CACHE_PERSISTENT=1 keeps the result. The kernels run on any in-order queue of the context.
class tensor_kernels {
 public:
  explicit tensor_kernels(const sycl::queue& queue)
      : m_bundle(compile(queue)),
        m_narrow_kernel(m_bundle.ext_oneapi_get_kernel("tensor_narrow")),
        m_add_kernel(m_bundle.ext_oneapi_get_kernel("tensor_add")),
        m_reduce_kernel(m_bundle.ext_oneapi_get_kernel("tensor_reduce")) {}

  sycl::event narrow(sycl::queue& queue, void* destination, const void* source, std::uint64_t count,
                     const std::vector<sycl::event>& wait_events) const {
    return queue.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_events);
      handler.set_args(destination, const_cast<void*>(source), static_cast<unsigned long>(count));
      handler.parallel_for(work_range(count), m_narrow_kernel);
    });
  }
  sycl::event add(sycl::queue& queue, const tensor_sum& sum) const {
    return queue.submit([&](sycl::handler& handler) {
      handler.set_args(sum.tensor, sum.own, sum.inbox, static_cast<unsigned long>(sum.slot_bytes),
                       static_cast<unsigned long>(sum.count), static_cast<unsigned long>(sum.active), sum.rank,
                       sum.size, sum.wire, sum.format);
      handler.parallel_for(work_range(sum.count), m_add_kernel);
    });
  }
  sycl::event reduce(sycl::queue& queue, const tensor_reduction& sum,
                     const std::vector<sycl::event>& wait_events) const {
    return queue.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_events);
      handler.set_args(sum.tensor, sum.copy, sum.sources[0], sum.sources[1], sum.sources[2], sum.sources[3],
                       static_cast<unsigned long>(sum.count), sum.format);
      handler.parallel_for(work_range(sum.count), m_reduce_kernel);
    });
  }

 private:
  using bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;
  template <typename Source>
  static bundle build(Source source) {
    namespace exp = sycl::ext::oneapi::experimental;
#if defined(__LIBSYCL_MAJOR_VERSION) && __LIBSYCL_MAJOR_VERSION < 9
    // The kernels need no device libraries, and the 2025 runtime on PyPI lacks the first one.
    return exp::build(source, exp::properties{exp::build_options{"-fno-sycl-device-lib=all"}});
#else
    return exp::build(source);  // this version has no such option
#endif
  }
  static bundle compile(const sycl::queue& queue) {
    namespace exp = sycl::ext::oneapi::experimental;
    static constexpr const char* entry_points = R"(
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void tensor_narrow(void* destination, void* source, unsigned long count) {
  const unsigned long i = global_index();
  if (i < count) narrow(i, destination, source);
}
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void tensor_add(void* tensor, void* own, void* inbox, unsigned long slot_bytes, unsigned long count,
                unsigned long active, unsigned rank, unsigned size, unsigned wire, unsigned format) {
  const unsigned long i = global_index();
  if (i < count) add(i, tensor, own, inbox, slot_bytes, active, rank, size, wire, format);
}
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((exp::nd_range_kernel<1>))
void tensor_reduce(void* tensor, void* copy, void* source0, void* source1, void* source2, void* source3,
                   unsigned long count, unsigned format) {
  const unsigned long i = global_index();
  if (i < count) reduce(i, tensor, copy, source0, source1, source2, source3, format);
}
)";
    const std::string text =
        std::string("#include <sycl/sycl.hpp>\nnamespace exp = sycl::ext::oneapi::experimental;\n") +
        tensor_device_text +
        "\ninline unsigned long global_index() { return "
        "sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_global_id(0); }\n" +
        entry_points;
    auto source = exp::create_kernel_bundle_from_source(queue.get_context(), exp::source_language::sycl, text);
    return build(source);
  }

  bundle m_bundle;
  sycl::kernel m_narrow_kernel, m_add_kernel, m_reduce_kernel;
};

#else

class tensor_kernels {
 public:
  explicit tensor_kernels(const sycl::queue&) {}

  sycl::event narrow(sycl::queue& queue, void* destination, const void* source, std::uint64_t count,
                     const std::vector<sycl::event>& wait_events) const {
    return queue.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_events);
      handler.parallel_for(work_range(count), [=](sycl::nd_item<1> item) {
        const unsigned long i = item.get_global_id(0);
        if (i < count) tensor_device::narrow(i, destination, source);
      });
    });
  }
  sycl::event add(sycl::queue& queue, const tensor_sum& sum) const {
    return queue.submit([&](sycl::handler& handler) {
      handler.parallel_for(work_range(sum.count), [sum](sycl::nd_item<1> item) {
        const unsigned long i = item.get_global_id(0);
        if (i < sum.count)
          tensor_device::add(i, sum.tensor, sum.own, sum.inbox, sum.slot_bytes, sum.active, sum.rank, sum.size,
                             sum.wire, sum.format);
      });
    });
  }
  sycl::event reduce(sycl::queue& queue, const tensor_reduction& sum,
                     const std::vector<sycl::event>& wait_events) const {
    return queue.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_events);
      handler.parallel_for(work_range(sum.count), [sum](sycl::nd_item<1> item) {
        const unsigned long i = item.get_global_id(0);
        if (i < sum.count)
          tensor_device::reduce(i, sum.tensor, sum.copy, sum.sources[0], sum.sources[1], sum.sources[2],
                                sum.sources[3], sum.format);
      });
    });
  }
};

#endif

}  // namespace isthmus::detail

#endif
