// Counts the Level Zero calls of an allreduce by libisthmus_ggml.so, preloaded. ggml is a stand-in, and so is Level
// Zero: the SYCL runtime's own Level Zero adapter runs on a driver in host memory.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <isthmus/sycl/tensor_kernels.hpp>
#include <sycl/sycl.hpp>

#include "device/level_zero/standin.h"
#include "frontends/ggml/standin/ggml.hpp"
#include "operators/tensor_parallel/shards.hpp"

namespace {

template <typename Function>
Function* find(const char* name) {
  static void* library = dlopen("libze_loader.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error("the SYCL runtime has not loaded the stand-in");
  return reinterpret_cast<Function*>(dlsym(library, name));
}
std::uint64_t level_zero_calls() { return find<standin_all_calls_function>("standin_all_calls")(); }

// The kernels of tensor_kernels.hpp. Their arguments have the types of these functions' parameters.
void add(unsigned long i, void* tensor, void* own, void* inbox, unsigned long slot_bytes, unsigned long count,
         unsigned long active, unsigned rank, unsigned size, unsigned wire, unsigned format) {
  if (i < count)
    isthmus::detail::tensor_device::add(i, tensor, own, inbox, slot_bytes, active, rank, size, wire, format);
}
void narrow(unsigned long i, void* destination, void* source, unsigned long count) {
  if (i < count) isthmus::detail::tensor_device::narrow(i, destination, source);
}
void reduce(unsigned long i, void* tensor, void* copy, void* source0, void* source1, void* source2,
            void* source3, unsigned long count, unsigned format) {
  if (i < count)
    isthmus::detail::tensor_device::reduce(i, tensor, copy, source0, source1, source2, source3, format);
}

template <auto Kernel, typename... Parameters, std::size_t... Indices>
void run(void* const* arguments, std::uint64_t items, std::index_sequence<Indices...>) {
  for (unsigned long i = 0; i < items; ++i) Kernel(i, *static_cast<Parameters*>(arguments[Indices])...);
}
template <auto Kernel, typename... Parameters>
void define(const char* name, void (*)(unsigned long, Parameters...)) {
  constexpr std::size_t bytes[] = {sizeof(Parameters)...};
  find<standin_define_kernel_function>("standin_define_kernel")(
      name, bytes, sizeof...(Parameters), [](void* const* arguments, std::uint64_t items) {
        run<Kernel, Parameters...>(arguments, items, std::index_sequence_for<Parameters...>{});
      });
}
void define_kernels() {
  define<add>("__sycl_kernel_tensor_add", add);
  define<narrow>("__sycl_kernel_tensor_narrow", narrow);
  define<reduce>("__sycl_kernel_tensor_reduce", reduce);
}

// Records an event like ggml-sycl.
void record(void* queue) { static_cast<sycl::queue*>(queue)->ext_oneapi_submit_barrier(); }

struct count_case {
  int devices;
  std::uint64_t elements;
  std::uint64_t max_calls;  // of all devices, from the thread that calls allreduce
};
void PrintTo(const count_case& value, std::ostream* out) {
  *out << value.devices << " devices, " << value.elements << " elements";
}

class ggml_level_zero : public testing::TestWithParam<count_case> {
 protected:
  void SetUp() override {
    const std::vector<sycl::device> devices = sycl::device::get_devices(sycl::info::device_type::gpu);
    ASSERT_GE(devices.size(), n);
    define_kernels();
    std::vector<void*> pointers;
    for (std::size_t i = 0; i < n; ++i) queues.emplace_back(devices[i], sycl::property::queue::in_order{});
    for (auto& queue : queues) pointers.push_back(&queue);
    const auto backends = standin::make_sycl_backends(pointers, record);
    functions = standin::look_up(standin::registry_of(backends[0]));
    auto temporary = backends;
    comm = functions.init(temporary.data(), temporary.size());
    ASSERT_NE(comm, nullptr);
    for (auto& queue : queues) {
      data.push_back(sycl::malloc_device<float>(count, queue));
      results.push_back(sycl::malloc_device<float>(4 * count, queue));
      tensors.push_back(
          standin::make_tensor(standin::type::f32, data.back(), static_cast<std::int64_t>(count), true));
    }
  }
  void TearDown() override {
    if (comm != nullptr) functions.free(comm);
    for (std::size_t i = 0; i < data.size(); ++i) {
      sycl::free(data[i], queues[i]);
      sycl::free(results[i], queues[i]);
    }
  }

  const std::size_t n = static_cast<std::size_t>(GetParam().devices);
  const std::uint64_t count = GetParam().elements;
  std::vector<sycl::queue> queues;
  std::vector<float*> data, results;
  std::vector<ggml_tensor*> tensors;
  standin::comm_functions functions{};
  void* comm = nullptr;
};

// The stand-in executes nothing before the host waits, and then starts with any queue. Sums that follow each other
// immediately are therefore correct only if each command waits for the right commands of other queues.
TEST_P(ggml_level_zero, allreduce_makes_few_driver_calls) {
  const int size = static_cast<int>(n);
  std::vector<ggml_tensor*> without_last = tensors;
  without_last.back() =
      standin::make_tensor(standin::type::f32, data.back(), static_cast<std::int64_t>(count), false);
  const std::vector<std::vector<ggml_tensor*>*> sums = {&tensors, &without_last, &without_last, &tensors};
  const std::vector<int> factors = {1, size - 1, (size - 1) * (size - 1), size * (size - 1) * (size - 1)};
  for (std::uint64_t round = 0; round < 2 * n; ++round) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::vector<float> shard = shards::make(round, static_cast<int>(i), count, true);
      queues[i].memcpy(data[i], shard.data(), count * sizeof(float)).wait();
    }
    for (std::size_t s = 0; s < sums.size(); ++s) {
      const std::uint64_t previous_calls = level_zero_calls();
      ASSERT_TRUE(functions.allreduce(comm, sums[s]->data()));
      const std::uint64_t calls = level_zero_calls() - previous_calls;
      // The first round also allocates memory and events.
      EXPECT_TRUE(round == 0 || calls <= GetParam().max_calls) << calls << " calls";
      for (std::size_t i = 0; i < n; ++i)
        queues[i].memcpy(results[i] + s * count, data[i], count * sizeof(float));
    }
    std::vector<float> result(count);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t s = 0; s < sums.size(); ++s) {
        queues[i].memcpy(result.data(), results[i] + s * count, count * sizeof(float)).wait();
        std::uint64_t wrong = 0;
        for (std::uint64_t k = 0; k < count; ++k)
          wrong += result[k] !=
                   shards::expected(round, size, ISTHMUS_ALL_ACTIVE, k) * static_cast<float>(factors[s]);
        EXPECT_EQ(wrong, 0u) << "device " << i << ", sum " << s;
      }
  }
}

// 16 KiB is a token of a model with 4,096 columns. Larger tensors, here of 256 KiB, are sent as bfloat16.
INSTANTIATE_TEST_SUITE_P(sizes, ggml_level_zero,
                         testing::Values(count_case{2, 4096, 4}, count_case{4, 4096, 8},
                                         count_case{2, 65536, 10}, count_case{4, 65536, 28}));

}  // namespace
