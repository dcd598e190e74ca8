// A UCX that reaches memory of the stand-in devices: the real library behind it moves that as the host memory
// that it is. It wants to be told the kind of each buffer, and counts what comes out of devices and goes into
// them.
#include "ucp.h"

#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

extern "C" int cuPointerGetAttribute(void* value, int attribute, void* pointer);

namespace {

standin_ucp_tally tally{};

template <typename Function>
Function real(Function, const char* name) {
  static void* const library = dlopen("libucp.so.0", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library, name));
}

bool is_device_memory(const void* buffer) {
  constexpr int memory_type = 2, device = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
  unsigned type = 0;
  return cuPointerGetAttribute(&type, memory_type, const_cast<void*>(buffer)) == 0 && type == device;
}

bool is_of_devices(ucs_memory_type_t type) {
  return type == UCS_MEMORY_TYPE_CUDA || type == UCS_MEMORY_TYPE_ROCM;
}

// What the real one is told.
ucp_request_param_t on_the_host(const void* buffer, std::size_t bytes, const ucp_request_param_t* given,
                                std::size_t& counter) {
  ucp_request_param_t params = *given;
  const bool is_named = (params.op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) != 0;
  const bool is_device = is_device_memory(buffer);
  if (is_device != (is_named && is_of_devices(params.memory_type))) {
    std::fprintf(stderr, "stand-in of UCX: a buffer %s a device is named otherwise\n",
                 is_device ? "of" : "outside of");
    std::abort();
  }
  if (is_device) counter += bytes;
  params.op_attr_mask &= ~static_cast<std::uint32_t>(UCP_OP_ATTR_FIELD_MEMORY_TYPE);
  return params;
}

}  // namespace

extern "C" {

STANDIN_API standin_ucp_tally standin_ucp_take_tally(void) { return std::exchange(tally, standin_ucp_tally{}); }

STANDIN_API ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t* attributes) {
  const ucs_status_t status = real(&ucp_context_query, "ucp_context_query")(context, attributes);
  if (std::getenv("STANDIN_UCP_HOST_ONLY") == nullptr)
    attributes->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA) | UCS_BIT(UCS_MEMORY_TYPE_ROCM);
  return status;
}

STANDIN_API ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h endpoint, const void* buffer, std::size_t bytes,
                                              ucp_tag_t tag, const ucp_request_param_t* given) {
  const ucp_request_param_t params = on_the_host(buffer, bytes, given, tally.sent_bytes);
  return real(&ucp_tag_send_nbx, "ucp_tag_send_nbx")(endpoint, buffer, bytes, tag, &params);
}

STANDIN_API ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h worker, void* buffer, std::size_t bytes,
                                              ucp_tag_t tag, ucp_tag_t mask, const ucp_request_param_t* given) {
  const ucp_request_param_t params = on_the_host(buffer, bytes, given, tally.received_bytes);
  return real(&ucp_tag_recv_nbx, "ucp_tag_recv_nbx")(worker, buffer, bytes, tag, mask, &params);
}
}
