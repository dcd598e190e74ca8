// A UCX that supports memory of the stand-in devices, on top of the real library, which moves it as
// host memory. It checks that each buffer's memory type is specified, and counts the bytes that leave
// and enter device memory.
#include "ucp.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "backends/ucx/ucp_api.hpp"

extern "C" int cuPointerGetAttribute(void* value, int attribute, void* pointer);

using namespace isthmus::ucx;

namespace {

standin_ucp_counters counters{};

// Caches that depend on hooks in driver calls.
constexpr const char* caches[] = {"MEMTYPE_CACHE", "RCACHE_ENABLE"};
constexpr unsigned no_caches = 0b11;  // one bit for each disabled cache
std::mutex mutex;
std::map<const void*, unsigned> caches_off;  // for configurations and all objects created from them

native_status inherit_cache_setting(const void* from, void* const* object, native_status status) {
  const std::lock_guard lock(mutex);
  if (status == native_status::ok) caches_off[*object] = caches_off[from];
  return status;
}

bool has_caches(const void* object) {
  const std::lock_guard lock(mutex);
  return caches_off[object] != no_caches;
}

template <typename Function>
Function real(const char* name) {
  static void* const library = dlopen("libucp.so.0", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library, name));
}

bool is_device_memory(const void* buffer) {
  constexpr int memory_type = 2, device = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
  unsigned type = 0;
  return cuPointerGetAttribute(&type, memory_type, const_cast<void*>(buffer)) == 0 && type == device;
}

bool is_device_type(int type) { return type == cuda_memory || type == rocm_memory; }

// The parameters for the real library.
request_params as_host_buffer(const void* object, const void* buffer, std::size_t bytes,
                              const request_params* original, std::size_t& counter) {
  request_params params = *original;
  const bool is_named = (params.mask & request_has_memory_type) != 0;
  const bool is_device = is_device_memory(buffer);
  if (is_device != (is_named && is_device_type(params.memory_type))) {
    std::fprintf(stderr, "UCX stand-in: wrong memory type for a buffer in %s memory\n",
                 is_device ? "device" : "host");
    std::abort();
  }
  if (is_device && has_caches(object)) {  // as in a UCX that cannot load its module for these hooks
    std::fputs("UCX stand-in: the caches have not seen the allocation of a device buffer\n", stderr);
    std::abort();
  }
  if (is_device) counter += bytes;
  params.mask &= ~request_has_memory_type;
  return params;
}

}  // namespace

extern "C" {

STANDIN_API standin_ucp_counters standin_ucp_take_counters(void) {
  return std::exchange(counters, standin_ucp_counters{});
}

// STANDIN_UCP_MINOR overrides the minor version.
STANDIN_API void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  real<decltype(ucp_functions::get_version)>(__func__)(major, minor, release);
  if (const char* const version_override = std::getenv("STANDIN_UCP_MINOR"))
    *minor = static_cast<unsigned>(std::atoi(version_override));
}

STANDIN_API native_status ucp_config_read(const char* prefix, const char* file, void** config) {
  const native_status status = real<decltype(ucp_functions::config_read)>(__func__)(prefix, file, config);
  const std::lock_guard lock(mutex);
  unsigned& off = caches_off[*config] = 0;
  for (unsigned i = 0; i < std::size(caches); ++i) {
    const char* const set = std::getenv((std::string("UCX_") + caches[i]).c_str());
    if (set != nullptr && std::strcmp(set, "n") == 0) off |= 1U << i;
  }
  return status;
}

STANDIN_API native_status ucp_config_modify(void* config, const char* name, const char* value) {
  {
    const std::lock_guard lock(mutex);
    for (unsigned i = 0; i < std::size(caches); ++i) {
      if (std::strcmp(name, caches[i]) != 0) continue;
      ++counters.cache_settings;
      if (std::strcmp(value, "n") == 0) caches_off[config] |= 1U << i;
    }
  }
  return real<decltype(ucp_functions::config_modify)>(__func__)(config, name, value);
}

STANDIN_API native_status ucp_init_version(unsigned major, unsigned minor, const context_params* params,
                                           const void* config, void** context) {
  return inherit_cache_setting(
      config, context,
      real<decltype(ucp_functions::init_version)>(__func__)(major, minor, params, config, context));
}

STANDIN_API native_status ucp_worker_create(void* context, const worker_params* params, void** worker) {
  return inherit_cache_setting(context, worker,
                               real<decltype(ucp_functions::worker_create)>(__func__)(context, params, worker));
}

STANDIN_API native_status ucp_ep_create(void* worker, const endpoint_params* params, void** endpoint) {
  return inherit_cache_setting(worker, endpoint,
                               real<decltype(ucp_functions::ep_create)>(__func__)(worker, params, endpoint));
}

STANDIN_API native_status ucp_context_query(void* context, context_attributes* attributes) {
  const native_status status = real<decltype(ucp_functions::context_query)>(__func__)(context, attributes);
  if (std::getenv("STANDIN_UCP_HOST_ONLY") == nullptr)
    attributes->memory_types |= 1U << cuda_memory | 1U << rocm_memory;
  return status;
}

// STANDIN_UCP_MUTE drops everything that this process sends, as if a machine were unreachable.
STANDIN_API void* ucp_tag_send_nbx(void* endpoint, const void* buffer, std::size_t bytes, std::uint64_t tag,
                                   const request_params* original) {
  const request_params params = as_host_buffer(endpoint, buffer, bytes, original, counters.sent_bytes);
  if (is_device_memory(buffer) &&
      (params.mask & request_no_immediate_completion) == 0) {  // UCX 1.22 reads short messages on the CPU
    std::fputs("UCX stand-in: the CPU may read a device buffer immediately\n", stderr);
    std::abort();
  }
  if (std::getenv("STANDIN_UCP_MUTE") != nullptr) return nullptr;
  return real<decltype(ucp_functions::tag_send_nbx)>(__func__)(endpoint, buffer, bytes, tag, &params);
}

STANDIN_API void* ucp_tag_recv_nbx(void* worker, void* buffer, std::size_t bytes, std::uint64_t tag,
                                   std::uint64_t mask, const request_params* original) {
  const request_params params = as_host_buffer(worker, buffer, bytes, original, counters.received_bytes);
  return real<decltype(ucp_functions::tag_recv_nbx)>(__func__)(worker, buffer, bytes, tag, mask, &params);
}
}
