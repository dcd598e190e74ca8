#include "backends/ucx/worker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <thread>

namespace isthmus::ucx {
namespace {

using clock = std::chrono::steady_clock;

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

// UCX tells what a context uses only in print: lines that end in "transport/device".
std::vector<resource> resources_of(const functions& call, const void* context) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* stream = ::open_memstream(&text, &bytes);
  if (stream == nullptr) return {};
  call.context_print_info(context, stream);
  std::fclose(stream);
  std::vector<resource> found;
  std::istringstream lines(std::string(text, bytes));
  std::free(text);
  for (std::string line; std::getline(lines, line);) {
    const auto name = line.find_last_of(' ') + 1, slash = line.find('/', name);
    if (line.find("resource") == std::string::npos || slash == std::string::npos) continue;
    found.push_back({line.substr(name, slash - name), line.substr(slash + 1)});
  }
  return found;
}

// UCX's words for several transports, by how the transports' names begin.
bool is_meant_by(const std::string& asked, const std::string& transport) {
  static constexpr std::pair<std::string_view, std::string_view> families[] = {
      {"sm", "posix"},      {"sm", "sysv"},      {"sm", "cma"},        {"sm", "knem"},      {"sm", "xpmem"},
      {"shm", "posix"},     {"shm", "sysv"},     {"shm", "cma"},       {"shm", "knem"},     {"shm", "xpmem"},
      {"mm", "posix"},      {"mm", "sysv"},      {"mm", "xpmem"},      {"ib", "rc_"},       {"ib", "ud_"},
      {"ib", "dc_"},        {"rc", "rc_"},       {"ud", "ud_"},        {"dc", "dc_"},       {"rc_x", "rc_mlx5"},
      {"rc_v", "rc_verbs"}, {"ud_x", "ud_mlx5"}, {"ud_v", "ud_verbs"}, {"dc_x", "dc_mlx5"}, {"cuda", "cuda_"},
      {"rocm", "rocm_"}};
  return asked == transport || asked == "all" || std::ranges::any_of(families, [&](const auto& family) {
           return asked == family.first && transport.starts_with(family.second);
         });
}

}  // namespace

worker::worker(const library& ucx, int size) : m_call(ucx.call), m_peers(static_cast<std::size_t>(size)) {
  for (peer& each : m_peers) each.failures = &m_failures;
}

worker::~worker() { destroy(); }

void worker::destroy() noexcept {
  if (m_worker != nullptr) m_call.worker_destroy(m_worker);
  if (m_context != nullptr) m_call.cleanup(m_context);
  m_worker = m_context = nullptr;
}

std::string worker::make_context(const selection_of_network& network, void*& context) const {
  void* config = nullptr;
  if (const auto status = m_call.config_read(nullptr, nullptr, &config); status != native_status::ok)
    return fmt::format("UCX can't read its configuration: {}", text_of(status));
  native_status status = native_status::ok;
  const auto set = [&](const char* name, const std::string& value) {
    if (status == native_status::ok && !value.empty())
      status = m_call.config_modify(config, name, value.c_str());
  };
  set("TLS", network.transports);
  set("NET_DEVICES", network.interfaces);
  // A dead machine is noticed well within the timeout; UCX's own interval is 20 s.
  if (network.timeout_s > 0 && network.timeout_s < 80)
    set("KEEPALIVE_INTERVAL", fmt::format("{}ms", std::max(250, static_cast<int>(network.timeout_s * 250))));
  // UCX's caches rest on hooks in the driver's calls, which may be missing without a word. Then it takes memory
  // of a device for the host's, whatever it is told, and sends from where freed memory was. Without the caches
  // it asks the driver each time: not about host buffers, which are named.
  for (const char* const cache : {"MEMTYPE_CACHE", "RCACHE_ENABLE"})
    if (network.moves_device_memory && std::getenv(fmt::format("UCX_{}", cache).c_str()) == nullptr)
      set(cache, "n");
  context_params params{};
  params.field_mask = context_has_features | context_has_estimated_eps;
  params.features = feature_tag;
  params.estimated_num_eps = m_peers.size();
  if (status == native_status::ok)
    status = m_call.init_version(api_major, least_minor, &params, config, &context);
  m_call.config_release(config);
  return status == native_status::ok ? std::string() : fmt::format("UCX finds no network: {}", text_of(status));
}

// What was asked for and is not there, with what is.
std::string worker::find_missing(const selection_of_network& network) const {
  const auto used = m_context == nullptr ? std::vector<resource>{} : resources_of(m_call, m_context);
  std::string missing;
  const auto transports = split_list(network.transports.starts_with('^') ? "" : network.transports);
  for (const std::string& asked : transports)
    if (missing.empty() &&
        std::ranges::none_of(used, [&](auto& each) { return is_meant_by(asked, each.transport); }))
      missing = fmt::format("backend.ucx.transports names \"{}\", which this machine does not have", asked);
  for (const std::string& asked : split_list(network.interfaces))
    if (missing.empty() && asked != "all" &&
        std::ranges::none_of(used, [&](auto& each) { return each.interface == asked; }))
      missing = fmt::format("backend.ucx.interfaces names \"{}\", which this machine does not have", asked);
  if (missing.empty()) return missing;
  void* all = nullptr;
  std::vector<std::string> names;
  if (make_context({}, all).empty()) {
    for (const resource& each : resources_of(m_call, all))
      names.push_back(fmt::format("{}/{}", each.transport, each.interface));
    m_call.cleanup(all);
  }
  return fmt::format("{}{}; it has (transport/interface) {}", missing,
                     network.transports.empty() || network.interfaces.empty() ? "" : " in this combination",
                     fmt::join(names, ", "));
}

std::string worker::open(const selection_of_network& network, bool& is_asked_for) {
  std::string failure = make_context(network, m_context);
  std::string missing = find_missing(network);
  is_asked_for = !missing.empty();
  if (is_asked_for) return missing;
  if (!failure.empty()) return failure;
  worker_params params{};
  params.field_mask = worker_has_thread_mode;
  params.thread_mode = thread_mode_serialized;
  const auto status = m_call.worker_create(m_context, &params, &m_worker);
  if (status == native_status::ok) return {};
  const char* const ports = std::getenv("UCX_TCP_PORT_RANGE");
  return fmt::format(
      "UCX can't open its transports: {}{}; UCX's log says more", text_of(status),
      ports == nullptr ? "" : fmt::format(" (are the ports of UCX_TCP_PORT_RANGE={} taken?)", ports));
}

std::uint64_t worker::memory_types() const {
  context_attributes attributes{};
  attributes.field_mask = attributes_have_memory_types;
  return m_call.context_query(m_context, &attributes) == native_status::ok ? attributes.memory_types : 0;
}

std::string worker::read_address(std::vector<std::byte>& address) const {
  void* native = nullptr;
  std::size_t bytes = 0;
  if (const auto status = m_call.worker_get_address(m_worker, &native, &bytes); status != native_status::ok)
    return fmt::format("ucp_worker_get_address: {}", text_of(status));
  const auto* begin = static_cast<const std::byte*>(native);
  address.assign(begin, begin + bytes);
  m_call.worker_release_address(m_worker, native);
  return {};
}

std::string worker::connect(int to, const std::byte* address) {
  peer& other = m_peers[static_cast<std::size_t>(to)];
  endpoint_params params{};
  params.field_mask = endpoint_has_address | endpoint_has_mode | endpoint_has_handler;
  params.address = address;
  params.failure_mode = failure_mode_peer;
  params.handler = {on_failure, &other};
  const auto status = m_call.ep_create(m_worker, &params, &other.endpoint);
  if (status == native_status::ok) return {};
  other.endpoint = nullptr;
  return fmt::format("no transport of UCX reaches rank {}: {}", to, text_of(status));
}

void worker::on_failure(void* argument, void*, native_status status) {
  peer& other = *static_cast<peer*>(argument);
  if (other.failure == native_status::ok) ++*other.failures;
  other.failure = status;
}

void worker::finish(transfer& moving, native_status status) {
  moving.request = nullptr;
  moving.status = status;
  moving.done = true;
  --*moving.open;
}

void worker::on_sent(void* request, native_status status, void* user_data) {
  auto& moving = *static_cast<transfer*>(user_data);
  finish(moving, status);
  moving.call->request_free(request);
}

void worker::on_received(void* request, native_status status, const receive_info* info, void* user_data) {
  auto& moving = *static_cast<transfer*>(user_data);
  if (status == native_status::ok) moving.arrived = info->length;
  finish(moving, status);
  moving.call->request_free(request);
}

void worker::begin(transfer& moving, std::size_t bytes) {
  moving = {};
  moving.call = &m_call;
  moving.done = false;
  moving.bytes = bytes;
  moving.open = &m_open;
  ++m_open;
}

// What UCX said to a start. A callback may have come before, from within.
void worker::settle(transfer& moving, void* result) {
  if (moving.done) return;
  if (result == nullptr)
    finish(moving, native_status::ok);
  else if (is_failure(result))
    finish(moving, ucx::failure_of(result));
  else
    moving.request = result;
}

void worker::send(transfer& moving, int to, std::uint64_t tag, const void* data, std::size_t bytes,
                  int memory) {
  const peer& other = m_peers[static_cast<std::size_t>(to)];
  begin(moving, bytes);
  if (other.endpoint == nullptr || other.failure != native_status::ok)
    return finish(moving, other.endpoint == nullptr ? native_status::unreachable : other.failure);
  request_params params{};
  params.mask = request_has_callback | request_has_user_data | request_has_memory_type;
  params.callback.send = on_sent;
  params.user_data = &moving;
  params.memory_type = memory;
  // Short messages that may end at once UCX reads itself where an older context's hooks have seen no memory of
  // devices, whatever it is told of this one.
  if (memory != host_memory) params.mask |= request_not_at_once;
  settle(moving, m_call.tag_send_nbx(other.endpoint, data, bytes, tag, &params));
}

void worker::receive(transfer& moving, std::uint64_t tag, std::uint64_t mask, void* data, std::size_t bytes,
                     int memory) {
  begin(moving, bytes);
  request_params params{};
  // What arrived is told to the callback alone: of receives that are complete at once UCX 1.13 tells no length.
  params.mask = request_has_callback | request_has_user_data | request_has_memory_type | request_not_at_once;
  params.callback.receive = on_received;
  params.user_data = &moving;
  params.memory_type = memory;
  settle(moving, m_call.tag_recv_nbx(m_worker, data, bytes, tag, mask, &params));
}

void worker::cancel(transfer& moving) const {
  if (!moving.done && moving.request != nullptr) m_call.request_cancel(m_worker, moving.request);
}

bool worker::start_flush() {
  const request_params params{};
  void* const result = m_call.worker_flush_nbx(m_worker, &params);
  m_flush = is_failure(result) ? nullptr : result;
  return m_flush != nullptr;
}

bool worker::is_flushed() {
  if (m_flush == nullptr) return true;
  if (m_call.request_check_status(m_flush) == native_status::in_progress) return false;
  m_call.request_free(m_flush);
  m_flush = nullptr;
  return true;
}

void worker::close(double seconds) {
  std::vector<void*> closing;
  for (peer& each : m_peers) {
    if (each.endpoint == nullptr) continue;
    request_params params{};
    params.mask = request_has_flags;
    params.flags = close_force;
    void* const result = m_call.ep_close_nbx(each.endpoint, &params);
    if (result != nullptr && !is_failure(result)) closing.push_back(result);
    each.endpoint = nullptr;
  }
  const auto deadline =
      clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds));
  while ((!closing.empty() || m_open > 0) && clock::now() < deadline) {
    std::erase_if(closing, [&](void* request) {
      if (m_call.request_check_status(request) == native_status::in_progress) return false;
      m_call.request_free(request);
      return true;
    });
    if (!progress()) std::this_thread::yield();
  }
  for (void* request : closing) m_call.request_free(request);
}

}  // namespace isthmus::ucx
