// Preloaded into a program that uses the real ggml-sycl. Makes this machine look like one with several
// GPUs, so that an unmodified libggml-sycl.so runs on shares of the CPU. It changes only the results of
// queries by libggml-sycl and computes nothing. It tests function, not speed, and says nothing about Level
// Zero or peer access.
//
//   MACHINE_DEVICES=N       splits the CPU into N shares, each one a device; ggml lists the CPU itself first
//   MACHINE_ONE_CONTEXT=1   creates all queues of shares in one context, as on GPUs of one platform
//
// The functions interpose member functions of the SYCL classes, using their x86-64 mangled names.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sycl/sycl.hpp>
#include <vector>

#define SYCL_INFO(name)                                       \
  "_ZNK4sycl3_V16device13get_info_implINS0_4info6device" name \
  "EEENS0_6detail11ABINeutralTINS6_19is_device_info_descIT_E11return_typeEE4typeEv"
#define IS_GPU "_ZNK4sycl3_V16device6is_gpuEv"
#define GET_DEVICES "_ZNK4sycl3_V18platform11get_devicesENS0_4info11device_typeE"
#define CAN_ACCESS_PEER "_ZN4sycl3_V16device26ext_oneapi_can_access_peerERKS1_NS0_3ext6oneapi11peer_accessE"
#define COMPUTE_UNITS SYCL_INFO("17max_compute_units")
#define GROUP_SIZE SYCL_INFO("19max_work_group_size")
#define MAKE_QUEUE(constructor)    \
  "_ZN4sycl3_V15queue" constructor \
  "ERKNS0_6deviceERKSt8functionIFvNS0_14exception_listEEERKNS0_13property_listE"

namespace {

bool is_ggml(const void* caller) {
  Dl_info info{};
  return dladdr(caller, &info) != 0 && info.dli_fname != nullptr &&
         std::strstr(info.dli_fname, "libggml-sycl") != nullptr;
}

// ggml-sycl and its runtime are loaded by dlopen, so the runtime may be missing in the global scope.
template <typename Function>
Function* next(const char* name) {
  void* symbol = dlsym(RTLD_NEXT, name);
  if (symbol == nullptr) symbol = dlsym(dlopen("libsycl.so.8", RTLD_LAZY | RTLD_NOLOAD), name);
  return reinterpret_cast<Function*>(symbol);
}

std::size_t device_count() {
  const char* text = std::getenv("MACHINE_DEVICES");
  return text != nullptr ? static_cast<std::size_t>(std::atoi(text)) : 1;
}

// Created once and never destroyed, because queues use them until exit. With fewer cores than devices, shares
// have cores in common: each division of the CPU creates new devices.
const std::vector<sycl::device>& shares_of(const sycl::device& cpu) {
  static const auto* sub_devices = [&] {
    auto* shares = new std::vector<sycl::device>;
    const std::size_t n = device_count();
    const std::size_t cores =
        std::max<std::size_t>(1, cpu.get_info<sycl::info::device::max_compute_units>() / n);
    while (shares->size() < n)
      for (const sycl::device& part :
           cpu.create_sub_devices<sycl::info::partition_property::partition_equally>(cores))
        if (shares->size() < n) shares->push_back(part);
    return shares;
  }();
  return *sub_devices;
}

using make_queue = void(void*, const sycl::device&, const sycl::async_handler&, const sycl::property_list&);

void construct(void* self, const sycl::device& device, const sycl::async_handler& handler,
               const sycl::property_list& properties, const void* caller) {
  static auto* const real = next<make_queue>(MAKE_QUEUE("C1"));
  static const bool shared = std::getenv("MACHINE_ONE_CONTEXT") != nullptr;
  if (shared && device_count() > 1 && is_ggml(caller) && device.is_cpu()) {
    const auto& shares = shares_of(device.get_platform().get_devices()[0]);
    if (std::find(shares.begin(), shares.end(), device) != shares.end()) {
      static const auto* context = new sycl::context(shares);
      new (self) sycl::queue(*context, device, handler, properties);
      return;
    }
  }
  real(self, device, handler, properties);
}

}  // namespace

#define SYCL_EXPORT extern "C" [[gnu::visibility("default")]]

// Required because ggml-sycl does not accept CPU devices.
SYCL_EXPORT bool machine_is_gpu(const sycl::device* device) __asm__(IS_GPU);
bool machine_is_gpu(const sycl::device* device) {
  static auto* const real = next<bool(const sycl::device*)>(IS_GPU);
  return real(device) || (is_ggml(__builtin_return_address(0)) && device->is_cpu());
}

// The address of the result comes first, then `this`.
SYCL_EXPORT void* machine_devices(std::vector<sycl::device>* result, const sycl::platform* platform,
                                  sycl::info::device_type type) __asm__(GET_DEVICES);
void* machine_devices(std::vector<sycl::device>* result, const sycl::platform* platform,
                      sycl::info::device_type type) {
  static auto* const real =
      next<void*(std::vector<sycl::device>*, const sycl::platform*, sycl::info::device_type)>(GET_DEVICES);
  real(result, platform, type);
  if (device_count() > 1 && is_ggml(__builtin_return_address(0)) && !result->empty() &&
      result->front().is_cpu())
    *result = shares_of(result->front());
  return result;
}

SYCL_EXPORT void machine_queue(void* self, const sycl::device& device, const sycl::async_handler& handler,
                               const sycl::property_list& properties) __asm__(MAKE_QUEUE("C1"));
void machine_queue(void* self, const sycl::device& device, const sycl::async_handler& handler,
                   const sycl::property_list& properties) {
  construct(self, device, handler, properties, __builtin_return_address(0));
}
SYCL_EXPORT void machine_base_queue(void* self, const sycl::device& device, const sycl::async_handler& handler,
                                    const sycl::property_list& properties) __asm__(MAKE_QUEUE("C2"));
void machine_base_queue(void* self, const sycl::device& device, const sycl::async_handler& handler,
                        const sycl::property_list& properties) {
  construct(self, device, handler, properties, __builtin_return_address(0));
}

// OpenCL's implementation of this query terminates the process.
SYCL_EXPORT bool machine_has_peer(sycl::device* device, const sycl::device& peer,
                                  int attribute) __asm__(CAN_ACCESS_PEER);
bool machine_has_peer(sycl::device* device, const sycl::device& peer, int attribute) {
  static auto* const real = next<bool(sycl::device*, const sycl::device&, int)>(CAN_ACCESS_PEER);
  if (is_ggml(__builtin_return_address(0)) && device->is_cpu()) return false;
  return real(device, peer, attribute);
}

// ggml-sycl divides the number of compute units by 16, and its kernels support groups of at most 1,024.
SYCL_EXPORT unsigned machine_units(const sycl::device* device) __asm__(COMPUTE_UNITS);
unsigned machine_units(const sycl::device* device) {
  static auto* const real = next<unsigned(const sycl::device*)>(COMPUTE_UNITS);
  const unsigned units = real(device);
  return is_ggml(__builtin_return_address(0)) ? (units + 15) / 16 * 16 : units;
}
SYCL_EXPORT std::size_t machine_group(const sycl::device* device) __asm__(GROUP_SIZE);
std::size_t machine_group(const sycl::device* device) {
  static auto* const real = next<std::size_t(const sycl::device*)>(GROUP_SIZE);
  const std::size_t size = real(device);
  return is_ggml(__builtin_return_address(0)) ? std::min<std::size_t>(size, 1024) : size;
}
