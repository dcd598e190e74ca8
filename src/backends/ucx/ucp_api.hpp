// Declarations of the UCX functions and structures that this backend uses, for UCX 1.12 and newer. UCX
// only appends fields to its structures, and masks specify which fields are set. If UCX's headers are
// installed, abi_check_ucp.cpp compares the declarations with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace isthmus::ucx {

// One byte, because UCX packs this enumeration.
enum class native_status : signed char {
  ok = 0,
  in_progress = 1,
  no_memory = -4,
  unreachable = -6,
  message_truncated = -9,
  no_device = -14,
  canceled = -16,
  connection_reset = -25,
  endpoint_timeout = -80,
  last = -100
};

// A non-blocking function returns null (complete), a status cast to a pointer, or a request.
inline bool is_error(const void* result) {
  return reinterpret_cast<std::uintptr_t>(result) >= static_cast<std::uintptr_t>(std::intptr_t{-100});
}
inline native_status status_of(const void* result) {
  return static_cast<native_status>(reinterpret_cast<std::intptr_t>(result));
}

inline constexpr unsigned api_major = 1, min_minor = 12;
inline constexpr unsigned min_minor_for_devices = 13;  // registration cache can be disabled

struct context_params {
  std::uint64_t field_mask;
  std::uint64_t features;
  std::size_t request_size;
  void (*request_init)(void*);
  void (*request_cleanup)(void*);
  std::uint64_t tag_sender_mask;
  int mt_workers_shared;
  std::size_t estimated_num_eps;
};
inline constexpr std::uint64_t param_field_features = 1u << 0, param_field_estimated_eps = 1u << 6;
inline constexpr std::uint64_t feature_tag = 1u << 0;

struct context_attributes {
  std::uint64_t field_mask;
  std::size_t request_size;
  int thread_mode;
  std::uint64_t memory_types;  // one bit per type
  char name[32];
};
inline constexpr std::uint64_t attributes_have_memory_types = 1u << 2;
inline constexpr int host_memory = 0, cuda_memory = 1, rocm_memory = 3;

struct worker_params {
  std::uint64_t field_mask;
  int thread_mode;
};
inline constexpr std::uint64_t worker_has_thread_mode = 1u << 0;
inline constexpr int thread_mode_serialized = 1;

using failure_handler = void (*)(void* argument, void* endpoint, native_status status);

struct endpoint_params {
  std::uint64_t field_mask;
  const void* address;
  int err_handling_mode;
  struct {
    failure_handler function;
    void* argument;
  } handler;
};
inline constexpr std::uint64_t endpoint_has_address = 1u << 0, endpoint_has_mode = 1u << 1,
                               endpoint_has_handler = 1u << 2;
inline constexpr int err_handling_mode_peer = 1;

struct receive_info {
  std::uint64_t sender_tag;
  std::size_t length;
};
using send_callback = void (*)(void* request, native_status status, void* user_data);
using receive_callback = void (*)(void* request, native_status status, const receive_info* info,
                                  void* user_data);

struct request_params {
  std::uint32_t mask;
  std::uint32_t flags;
  void* request;
  union {
    send_callback send;
    receive_callback receive;
  } callback;
  std::uint64_t datatype;
  void* user_data;
  void* reply_buffer;
  int memory_type;
  void* receive_info;
};
inline constexpr std::uint32_t request_has_callback = 1u << 1, request_has_user_data = 1u << 2,
                               request_has_flags = 1u << 4, request_has_memory_type = 1u << 6,
                               request_no_immediate_completion = 1u << 16;
inline constexpr std::uint32_t close_force = 1u << 0;

// The functions, named as in ucp/api/ucp.h without the prefix ucp_.
struct ucp_functions {
  void (*get_version)(unsigned* major, unsigned* minor, unsigned* release) = nullptr;
  const char* (*get_version_string)() = nullptr;
  native_status (*config_read)(const char* prefix, const char* file, void** config) = nullptr;
  native_status (*config_modify)(void* config, const char* name, const char* value) = nullptr;
  void (*config_release)(void* config) = nullptr;
  native_status (*init_version)(unsigned major, unsigned minor, const context_params*, const void* config,
                                void** context) = nullptr;
  void (*context_print_info)(const void* context, std::FILE* stream) = nullptr;
  native_status (*context_query)(void* context, context_attributes*) = nullptr;
  void (*cleanup)(void* context) = nullptr;
  native_status (*worker_create)(void* context, const worker_params*, void** worker) = nullptr;
  void (*worker_destroy)(void* worker) = nullptr;
  native_status (*worker_get_address)(void* worker, void** address, std::size_t* bytes) = nullptr;
  void (*worker_release_address)(void* worker, void* address) = nullptr;
  unsigned (*worker_progress)(void* worker) = nullptr;
  void* (*worker_flush_nbx)(void* worker, const request_params*) = nullptr;
  native_status (*ep_create)(void* worker, const endpoint_params*, void** endpoint) = nullptr;
  void* (*ep_close_nbx)(void* endpoint, const request_params*) = nullptr;
  void* (*tag_send_nbx)(void* endpoint, const void* buffer, std::size_t bytes, std::uint64_t tag,
                        const request_params*) = nullptr;
  void* (*tag_recv_nbx)(void* worker, void* buffer, std::size_t bytes, std::uint64_t tag, std::uint64_t mask,
                        const request_params*) = nullptr;
  native_status (*request_check_status)(void* request) = nullptr;
  void (*request_cancel)(void* worker, void* request) = nullptr;
  void (*request_free)(void* request) = nullptr;
  const char* (*status_string)(native_status) = nullptr;  // ucs_status_string
};

}  // namespace isthmus::ucx
