// Compares ucp_api.hpp with UCX's headers. Compiled only if they are installed.
#include <ucp/api/ucp.h>

#include <cstddef>

#include "backends/ucx/ucp_api.hpp"
#include "base/abi_check.hpp"

namespace isthmus::ucx {

static_assert(sizeof(native_status) == sizeof(ucs_status_t));
static_assert(int{UCS_OK} == int{static_cast<signed char>(native_status::ok)});
static_assert(int{UCS_INPROGRESS} == int{static_cast<signed char>(native_status::in_progress)});
static_assert(int{UCS_ERR_NO_MEMORY} == int{static_cast<signed char>(native_status::no_memory)});
static_assert(int{UCS_ERR_UNREACHABLE} == int{static_cast<signed char>(native_status::unreachable)});
static_assert(int{UCS_ERR_MESSAGE_TRUNCATED} ==
              int{static_cast<signed char>(native_status::message_truncated)});
static_assert(int{UCS_ERR_NO_DEVICE} == int{static_cast<signed char>(native_status::no_device)});
static_assert(int{UCS_ERR_CANCELED} == int{static_cast<signed char>(native_status::canceled)});
static_assert(int{UCS_ERR_CONNECTION_RESET} == int{static_cast<signed char>(native_status::connection_reset)});
static_assert(int{UCS_ERR_ENDPOINT_TIMEOUT} == int{static_cast<signed char>(native_status::endpoint_timeout)});
static_assert(int{UCS_ERR_LAST} == int{static_cast<signed char>(native_status::last)});

static_assert(offsetof(context_params, features) == offsetof(ucp_params_t, features));
static_assert(offsetof(context_params, estimated_num_eps) == offsetof(ucp_params_t, estimated_num_eps));
static_assert(sizeof(context_params) <= sizeof(ucp_params_t));
static_assert(param_field_features == UCP_PARAM_FIELD_FEATURES);
static_assert(param_field_estimated_eps == UCP_PARAM_FIELD_ESTIMATED_NUM_EPS);
static_assert(feature_tag == UCP_FEATURE_TAG);
static_assert(offsetof(context_attributes, memory_types) == offsetof(ucp_context_attr_t, memory_types));
static_assert(sizeof(context_attributes) == sizeof(ucp_context_attr_t));
static_assert(attributes_have_memory_types == UCP_ATTR_FIELD_MEMORY_TYPES);
static_assert(host_memory == int{UCS_MEMORY_TYPE_HOST} && cuda_memory == int{UCS_MEMORY_TYPE_CUDA} &&
              rocm_memory == int{UCS_MEMORY_TYPE_ROCM});
static_assert(offsetof(worker_params, thread_mode) == offsetof(ucp_worker_params_t, thread_mode));
static_assert(sizeof(worker_params::thread_mode) == sizeof(ucp_worker_params_t::thread_mode));
static_assert(worker_has_thread_mode == UCP_WORKER_PARAM_FIELD_THREAD_MODE);
static_assert(thread_mode_serialized == int{UCS_THREAD_MODE_SERIALIZED});
static_assert(offsetof(endpoint_params, address) == offsetof(ucp_ep_params_t, address));
static_assert(offsetof(endpoint_params, err_handling_mode) == offsetof(ucp_ep_params_t, err_mode));
static_assert(offsetof(endpoint_params, handler) == offsetof(ucp_ep_params_t, err_handler));
static_assert(sizeof(endpoint_params::handler) == sizeof(ucp_err_handler_t));
static_assert(endpoint_has_address == UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
static_assert(endpoint_has_mode == UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
static_assert(endpoint_has_handler == UCP_EP_PARAM_FIELD_ERR_HANDLER);
static_assert(err_handling_mode_peer == int{UCP_ERR_HANDLING_MODE_PEER});
static_assert(sizeof(receive_info) == sizeof(ucp_tag_recv_info_t));
static_assert(offsetof(receive_info, length) == offsetof(ucp_tag_recv_info_t, length));
static_assert(offsetof(request_params, callback) == offsetof(ucp_request_param_t, cb));
static_assert(offsetof(request_params, user_data) == offsetof(ucp_request_param_t, user_data));
static_assert(offsetof(request_params, memory_type) == offsetof(ucp_request_param_t, memory_type));
static_assert(request_has_memory_type == UCP_OP_ATTR_FIELD_MEMORY_TYPE);
static_assert(offsetof(request_params, receive_info) == offsetof(ucp_request_param_t, recv_info));
static_assert(sizeof(request_params) <= sizeof(ucp_request_param_t));
static_assert(request_has_callback == UCP_OP_ATTR_FIELD_CALLBACK);
static_assert(request_has_user_data == UCP_OP_ATTR_FIELD_USER_DATA);
static_assert(request_has_flags == UCP_OP_ATTR_FIELD_FLAGS);
static_assert(request_no_immediate_completion == UCP_OP_ATTR_FLAG_NO_IMM_CMPL);
static_assert(close_force == UCP_EP_CLOSE_FLAG_FORCE);
static_assert(sizeof(ucp_tag_t) == sizeof(std::uint64_t));
static_assert(UCP_API_MAJOR == api_major && UCP_API_MINOR >= min_minor);

static_assert(matches_abi<failure_handler>(static_cast<ucp_err_handler_cb_t>(nullptr)));
static_assert(matches_abi<send_callback>(static_cast<ucp_send_nbx_callback_t>(nullptr)));
static_assert(matches_abi<receive_callback>(static_cast<ucp_tag_recv_nbx_callback_t>(nullptr)));
static_assert(matches_abi<decltype(ucp_functions::get_version)>(&ucp_get_version));
static_assert(matches_abi<decltype(ucp_functions::get_version_string)>(&ucp_get_version_string));
static_assert(matches_abi<decltype(ucp_functions::config_read)>(&ucp_config_read));
static_assert(matches_abi<decltype(ucp_functions::config_modify)>(&ucp_config_modify));
static_assert(matches_abi<decltype(ucp_functions::config_release)>(&ucp_config_release));
static_assert(matches_abi<decltype(ucp_functions::init_version)>(&ucp_init_version));
static_assert(matches_abi<decltype(ucp_functions::context_print_info)>(&ucp_context_print_info));
static_assert(matches_abi<decltype(ucp_functions::context_query)>(&ucp_context_query));
static_assert(matches_abi<decltype(ucp_functions::cleanup)>(&ucp_cleanup));
static_assert(matches_abi<decltype(ucp_functions::worker_create)>(&ucp_worker_create));
static_assert(matches_abi<decltype(ucp_functions::worker_destroy)>(&ucp_worker_destroy));
static_assert(matches_abi<decltype(ucp_functions::worker_get_address)>(&ucp_worker_get_address));
static_assert(matches_abi<decltype(ucp_functions::worker_release_address)>(&ucp_worker_release_address));
static_assert(matches_abi<decltype(ucp_functions::worker_progress)>(&ucp_worker_progress));
static_assert(matches_abi<decltype(ucp_functions::worker_flush_nbx)>(&ucp_worker_flush_nbx));
static_assert(matches_abi<decltype(ucp_functions::ep_create)>(&ucp_ep_create));
static_assert(matches_abi<decltype(ucp_functions::ep_close_nbx)>(&ucp_ep_close_nbx));
static_assert(matches_abi<decltype(ucp_functions::tag_send_nbx)>(&ucp_tag_send_nbx));
static_assert(matches_abi<decltype(ucp_functions::tag_recv_nbx)>(&ucp_tag_recv_nbx));
static_assert(matches_abi<decltype(ucp_functions::request_check_status)>(&ucp_request_check_status));
static_assert(matches_abi<decltype(ucp_functions::request_cancel)>(&ucp_request_cancel));
static_assert(matches_abi<decltype(ucp_functions::request_free)>(&ucp_request_free));
static_assert(matches_abi<decltype(ucp_functions::status_string)>(&ucs_status_string));

}  // namespace isthmus::ucx
