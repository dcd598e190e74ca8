#include "backends/ucx/worker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "base/trust.hpp"
#include "failure/wait.hpp"

namespace isthmus::ucx {
namespace {

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> items;
  std::istringstream parts(list);
  for (std::string item; std::getline(parts, item, ',');)
    if (!item.empty()) items.push_back(item);
  return items;
}

struct resource {
  std::string transport, interface;
};

// UCX reports the resources of a context only as text: lines that end in "transport/device".
std::vector<resource> list_resources(const ucp_functions& api, const void* context) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* stream = ::open_memstream(&text, &bytes);
  if (stream == nullptr) return {};
  api.context_print_info(context, stream);
  std::fclose(stream);
  std::vector<resource> resources;
  std::istringstream lines(std::string(text, bytes));
  std::free(text);
  for (std::string line; std::getline(lines, line);) {
    const auto name = line.find_last_of(' ') + 1, slash = line.find('/', name);
    if (line.find("resource") == std::string::npos || slash == std::string::npos) continue;
    resources.push_back({line.substr(name, slash - name), line.substr(slash + 1)});
  }
  return resources;
}

// Returns true if a name in UCX_TLS selects a transport. UCX has aliases for families of transports, which
// share a common prefix.
bool matches_transport(const std::string& requested, const std::string& transport) {
  static constexpr std::pair<std::string_view, std::string_view> families[] = {
      {"sm", "posix"},      {"sm", "sysv"},      {"sm", "cma"},        {"sm", "knem"},      {"sm", "xpmem"},
      {"shm", "posix"},     {"shm", "sysv"},     {"shm", "cma"},       {"shm", "knem"},     {"shm", "xpmem"},
      {"mm", "posix"},      {"mm", "sysv"},      {"mm", "xpmem"},      {"ib", "rc_"},       {"ib", "ud_"},
      {"ib", "dc_"},        {"rc", "rc_"},       {"ud", "ud_"},        {"dc", "dc_"},       {"rc_x", "rc_mlx5"},
      {"rc_v", "rc_verbs"}, {"ud_x", "ud_mlx5"}, {"ud_v", "ud_verbs"}, {"dc_x", "dc_mlx5"}, {"cuda", "cuda_"},
      {"rocm", "rocm_"}};
  return requested == transport || requested == "all" || std::ranges::any_of(families, [&](const auto& family) {
           return requested == family.first && transport.starts_with(family.second);
         });
}

}  // namespace

worker::worker(const library& ucx, int size) : m_api(ucx.api), m_peers(static_cast<std::size_t>(size)) {
  for (peer_endpoint& each : m_peers) each.failures = &m_failed_endpoints;
}

worker::~worker() { destroy(); }

void worker::destroy() noexcept {
  if (m_worker != nullptr) m_api.worker_destroy(m_worker);
  if (m_context != nullptr) m_api.cleanup(m_context);
  m_worker = m_context = nullptr;
}

std::string worker::create_context(const network_settings& network, void*& context) const {
  void* config = nullptr;
  if (const auto status = m_api.config_read(nullptr, nullptr, &config); status != native_status::ok)
    return fmt::format("cannot read the UCX configuration: {}", status_text(status));
  native_status status = native_status::ok;
  const auto set = [&](const char* name, const std::string& value) {
    if (status == native_status::ok && !value.empty())
      status = m_api.config_modify(config, name, value.c_str());
  };
  set("TLS", network.transports);
  set("NET_DEVICES", network.interfaces);
  // The failure of a node must be detected well within the timeout. UCX's default interval is 20 s.
  if (network.timeout_s > 0 && network.timeout_s < 80)
    set("KEEPALIVE_INTERVAL", fmt::format("{}ms", std::max(250, static_cast<int>(network.timeout_s * 250))));
  // UCX's caches depend on hooks in the driver's functions. If the hooks are silently missing, UCX mistakes
  // device memory for host memory, even if the memory type is passed, and sends from freed memory. Without the
  // caches, UCX queries the driver each time. Host buffers are not queried, because their type is passed.
  for (const char* const cache : {"MEMTYPE_CACHE", "RCACHE_ENABLE"})
    if (network.uses_device_memory && environment_variable(fmt::format("UCX_{}", cache).c_str()) == nullptr)
      set(cache, "n");
  context_params params{};
  params.field_mask = param_field_features | param_field_estimated_eps;
  params.features = feature_tag;
  params.estimated_num_eps = m_peers.size();
  if (status == native_status::ok) status = m_api.init_version(api_major, min_minor, &params, config, &context);
  m_api.config_release(config);
  return status == native_status::ok ? std::string()
                                     : fmt::format("UCX found no usable transport: {}", status_text(status));
}

// Returns "" or a text that names the first missing transport or interface and lists the available ones.
std::string worker::find_missing(const network_settings& network) const {
  const auto used = m_context == nullptr ? std::vector<resource>{} : list_resources(m_api, m_context);
  std::string missing;
  const auto transports = split_list(network.transports.starts_with('^') ? "" : network.transports);
  for (const std::string& requested : transports)
    if (missing.empty() &&
        std::ranges::none_of(used, [&](auto& each) { return matches_transport(requested, each.transport); }))
      missing =
          fmt::format("backend.ucx.transports names \"{}\", which is not available on this node", requested);
  for (const std::string& requested : split_list(network.interfaces))
    if (missing.empty() && requested != "all" &&
        std::ranges::none_of(used, [&](auto& each) { return each.interface == requested; }))
      missing =
          fmt::format("backend.ucx.interfaces names \"{}\", which is not available on this node", requested);
  if (missing.empty()) return missing;
  void* all = nullptr;
  std::vector<std::string> names;
  if (create_context({}, all).empty()) {
    for (const resource& each : list_resources(m_api, all))
      names.push_back(fmt::format("{}/{}", each.transport, each.interface));
    m_api.cleanup(all);
  }
  return fmt::format("{}{}; available (transport/interface): {}", missing,
                     network.transports.empty() || network.interfaces.empty() ? "" : " in this combination",
                     fmt::join(names, ", "));
}

std::string worker::open(const network_settings& network, bool& is_config_error) {
  std::string failure = create_context(network, m_context);
  std::string missing = find_missing(network);
  is_config_error = !missing.empty();
  if (is_config_error) return missing;
  if (!failure.empty()) return failure;
  worker_params params{};
  params.field_mask = worker_has_thread_mode;
  params.thread_mode = thread_mode_serialized;
  const auto status = m_api.worker_create(m_context, &params, &m_worker);
  if (status == native_status::ok) return {};
  const char* const ports = environment_variable("UCX_TCP_PORT_RANGE");
  return fmt::format(
      "UCX cannot open its transports: {}{}; see the UCX log", status_text(status),
      ports == nullptr ? "" : fmt::format(" (the ports of UCX_TCP_PORT_RANGE={} may be in use)", ports));
}

std::uint64_t worker::memory_types() const {
  context_attributes attributes{};
  attributes.field_mask = attributes_have_memory_types;
  return m_api.context_query(m_context, &attributes) == native_status::ok ? attributes.memory_types : 0;
}

std::string worker::read_address(std::vector<std::byte>& address) const {
  void* native = nullptr;
  std::size_t bytes = 0;
  if (const auto status = m_api.worker_get_address(m_worker, &native, &bytes); status != native_status::ok)
    return fmt::format("ucp_worker_get_address: {}", status_text(status));
  const auto* begin = static_cast<const std::byte*>(native);
  address.assign(begin, begin + bytes);
  m_api.worker_release_address(m_worker, native);
  return {};
}

std::string worker::connect(int to, const std::byte* address) {
  peer_endpoint& remote = m_peers[static_cast<std::size_t>(to)];
  endpoint_params params{};
  params.field_mask = endpoint_has_address | endpoint_has_mode | endpoint_has_handler;
  params.address = address;
  params.err_handling_mode = err_handling_mode_peer;
  params.handler = {on_failure, &remote};
  const auto status = m_api.ep_create(m_worker, &params, &remote.endpoint);
  if (status == native_status::ok) return {};
  remote.endpoint = nullptr;
  return fmt::format("no UCX transport reaches rank {}: {}", to, status_text(status));
}

void worker::on_failure(void* argument, void*, native_status status) {
  peer_endpoint& remote = *static_cast<peer_endpoint*>(argument);
  if (remote.failure == native_status::ok) ++*remote.failures;
  remote.failure = status;
}

void worker::finish(ucx_transfer& transfer, native_status status) {
  transfer.request = nullptr;
  transfer.status = status;
  transfer.is_done = true;
  --*transfer.open;
}

void worker::on_sent(void* request, native_status status, void* user_data) {
  auto& transfer = *static_cast<ucx_transfer*>(user_data);
  finish(transfer, status);
  transfer.api->request_free(request);
}

void worker::on_received(void* request, native_status status, const receive_info* info, void* user_data) {
  auto& transfer = *static_cast<ucx_transfer*>(user_data);
  if (status == native_status::ok) transfer.received_bytes = info->length;
  finish(transfer, status);
  transfer.api->request_free(request);
}

void worker::begin(ucx_transfer& transfer, std::size_t bytes) {
  transfer = {};
  transfer.api = &m_api;
  transfer.is_done = false;
  transfer.bytes = bytes;
  transfer.open = &m_open_transfers;
  ++m_open_transfers;
}

// Handles the return value of a posted operation. Its callback may already have run inside the call.
void worker::handle_post_result(ucx_transfer& transfer, void* result) {
  if (transfer.is_done) return;
  if (result == nullptr)
    finish(transfer, native_status::ok);
  else if (is_error(result))
    finish(transfer, ucx::status_of(result));
  else
    transfer.request = result;
}

void worker::send(ucx_transfer& transfer, int to, std::uint64_t tag, const void* data, std::size_t bytes,
                  int memory_type) {
  const peer_endpoint& remote = m_peers[static_cast<std::size_t>(to)];
  begin(transfer, bytes);
  if (remote.endpoint == nullptr || remote.failure != native_status::ok)
    return finish(transfer, remote.endpoint == nullptr ? native_status::unreachable : remote.failure);
  request_params params{};
  params.mask = request_has_callback | request_has_user_data | request_has_memory_type;
  params.callback.send = on_sent;
  params.user_data = &transfer;
  params.memory_type = memory_type;
  // If a message may complete immediately and the hooks of an older context have seen no device memory, UCX
  // reads a short message on the host, even if the memory type is passed.
  if (memory_type != host_memory) params.mask |= request_no_immediate_completion;
  handle_post_result(transfer, m_api.tag_send_nbx(remote.endpoint, data, bytes, tag, &params));
}

void worker::receive(ucx_transfer& transfer, std::uint64_t tag, std::uint64_t mask, void* data,
                     std::size_t bytes, int memory_type) {
  begin(transfer, bytes);
  request_params params{};
  // Only the callback reports the received length: UCX 1.13 reports none if a receive completes immediately.
  params.mask =
      request_has_callback | request_has_user_data | request_has_memory_type | request_no_immediate_completion;
  params.callback.receive = on_received;
  params.user_data = &transfer;
  params.memory_type = memory_type;
  handle_post_result(transfer, m_api.tag_recv_nbx(m_worker, data, bytes, tag, mask, &params));
}

void worker::cancel(ucx_transfer& transfer) const {
  if (!transfer.is_done && transfer.request != nullptr) m_api.request_cancel(m_worker, transfer.request);
}

bool worker::start_flush() {
  const request_params params{};
  void* const result = m_api.worker_flush_nbx(m_worker, &params);
  m_flush = is_error(result) ? nullptr : result;
  return m_flush != nullptr;
}

bool worker::is_flushed() {
  if (m_flush == nullptr) return true;
  if (m_api.request_check_status(m_flush) == native_status::in_progress) return false;
  m_api.request_free(m_flush);
  m_flush = nullptr;
  return true;
}

void worker::close(double seconds) {
  std::vector<void*> close_requests;
  for (peer_endpoint& each : m_peers) {
    if (each.endpoint == nullptr) continue;
    request_params params{};
    params.mask = request_has_flags;
    params.flags = close_force;
    void* const result = m_api.ep_close_nbx(each.endpoint, &params);
    if (result != nullptr && !is_error(result)) close_requests.push_back(result);
    each.endpoint = nullptr;
  }
  const auto are_all_closed = [&] {
    std::erase_if(close_requests, [&](void* request) {
      if (m_api.request_check_status(request) == native_status::in_progress) return false;
      m_api.request_free(request);
      return true;
    });
    if (close_requests.empty() && m_open_transfers == 0) return poll_result::done;
    return progress() ? poll_result::progress : poll_result::pending;
  };
  poll_until(are_all_closed, deadline_after(seconds), yielding);
  for (void* request : close_requests) m_api.request_free(request);
}

}  // namespace isthmus::ucx
