#include "backends/p2p/peer_scratch.hpp"

#include <charconv>
#include <cstring>
#include <string>

#include "backends/p2p/device.hpp"

namespace isthmus::p2p {

// Describes a rank's scratch to its peers. Trivially copyable because it is sent to other processes.
struct peer_scratch::scratch_address {
  std::byte* pointer;
  gpu_ipc_handle handle;
  char bus_id[32];
  std::uint64_t packet_bytes, message_lanes;  // the options; those of rank 0 apply to all ranks
  int multiprocessors;
  int can_multiply;
};

namespace {

// Returns "" or an error message. `result` is unchanged if the option is not set.
std::string read_number(const isthmus_backend_context& context, const char* key, const char* unit,
                        std::uint64_t minimum, std::uint64_t& result) {
  const char* const text = context.option(context.runtime, key);
  if (text == nullptr) return {};
  const char* const end = text + std::strlen(text);
  const auto [rest, problem] = std::from_chars(text, end, result);
  if (problem == std::errc() && rest == end && result >= minimum) return {};
  return std::string("option ") + key + " = \"" + text + "\" must be a whole number of " + unit +
         ", at least " + std::to_string(minimum);
}

void refuse(refusal& own_vote, const char* action, gpu_error code) {
  own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, std::string(action) + ": " + gpu_error_text(code), {}, code);
}

}  // namespace

peer_scratch::peer_scratch(const isthmus_backend_context& context) : m_size(context.size) {
  if (context.collectives == 0 || (context.collectives & inbox_collectives) != 0)
    m_inbox_bytes = inbox_bytes(m_size);
  vote<scratch_address> own_vote;
  prepare(context, own_vote);
  votes<scratch_address> all;
  if (!agree(context, own_vote, all)) return;
  m_packet_bytes = all[0].value.packet_bytes;
  m_message_lanes = static_cast<int>(
      std::min<std::uint64_t>(all[0].value.message_lanes, std::min(few_lanes, max_lanes(m_size))));
  m_multiprocessors = all[0].value.multiprocessors;
  m_can_multiply = true;
  for (const auto& each : all) {
    m_multiprocessors = std::min(m_multiprocessors, each.value.multiprocessors);
    m_can_multiply &= each.value.can_multiply != 0;
  }
  // Second round: mapping can still fail on one rank, and no rank may write before all have mapped.
  vote<> mapped;
  map(context, all, mapped);
  votes<> all_mapped;
  agree(context, mapped, all_mapped);
}

template <typename Value>
bool peer_scratch::agree(const isthmus_backend_context& context, const vote<Value>& own_vote,
                         votes<Value>& all) {
  if (gather_votes(context, own_vote, all) != ISTHMUS_SUCCESS) {
    m_reason = "the ranks could not exchange their scratch addresses";
    return false;
  }
  m_reason = refusal_text(all);
  if (const int rank = first_refusal(all); rank >= 0) m_native_code = all[rank].native_code;
  return m_reason.empty();
}

void peer_scratch::prepare(const isthmus_backend_context& context, vote<scratch_address>& own_vote) {
  if (context.size > max_ranks)
    return own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, std::to_string(context.size) + " ranks, but at most " +
                                                          std::to_string(max_ranks) + " are supported");
  if (context.node_size != context.size)
    return own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, "the ranks are on several nodes");
  if (const std::string problem = read_flag(context, "share_device", m_may_share_device); !problem.empty())
    return own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, problem);
  for (const std::string& problem :
       {read_number(context, "packet_bytes", "bytes", 0, own_vote.value.packet_bytes),
        read_number(context, "message_lanes", "thread blocks", min_message_lanes,
                    own_vote.value.message_lanes)})
    if (!problem.empty()) return own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, problem);
  const device_guard guard(context.device.ordinal);
  if (guard.code() != gpu_success) return refuse(own_vote, "no such device", guard.code());
  m_device = context.device.ordinal;
  const gpu_error code = gpu_malloc(reinterpret_cast<void**>(&m_own_scratch), scratch_bytes());
  if (code != gpu_success) return refuse(own_vote, "no device memory for the scratch", code);
  if (const gpu_error fill_code = fill_scratch(); fill_code != gpu_success)
    return refuse(own_vote, "preparing the scratch", fill_code);
  own_vote.value.can_multiply = load_product_kernels(m_size) == gpu_success ? 1 : 0;
  gpu_error export_code = gpu_ipc_export(&own_vote.value.handle, m_own_scratch);
  if (export_code == gpu_success) export_code = gpu_multiprocessors(m_device, &own_vote.value.multiprocessors);
  if (export_code == gpu_success)
    export_code = gpu_bus_id(own_vote.value.bus_id, sizeof(own_vote.value.bus_id), m_device);
  if (export_code != gpu_success) return refuse(own_vote, "preparing the scratch", export_code);
  own_vote.value.pointer = m_own_scratch;
}

// Initializes the scratch and the host's flags, and loads the kernels. The device must be current.
gpu_error peer_scratch::fill_scratch() {
  // The inbox starts as "not yet arrived", everything else at zero.
  gpu_error code = gpu_memset(m_own_scratch, 0, inbox_offset);
  if (code == gpu_success && m_inbox_bytes != 0)
    code = gpu_memset(m_own_scratch + inbox_offset, 0xff, m_inbox_bytes);
  if (code == gpu_success) code = gpu_host_alloc(reinterpret_cast<void**>(&m_flags), sizeof(host_flags));
  if (code == gpu_success) code = load_reduction_kernels(m_size);
  if (code == gpu_success) code = load_rmsnorm_kernels(m_size);
  if (code == gpu_success) code = load_exchange_kernels();
  if (code == gpu_success) code = load_combine_kernels(m_size);
  if (code == gpu_success) code = gpu_synchronize_device();
  if (code != gpu_success) return code;
  m_can_start_early = supports_early_start();
  m_flags->abort = 0;
  m_flags->expired = 0;
  m_flags->awaited = 0;
  return gpu_success;
}

void peer_scratch::map(const isthmus_backend_context& context, const votes<scratch_address>& all,
                       refusal& own_vote) {
  const device_guard guard(m_device);
  m_scratch.assign(m_size, nullptr);
  m_scratch[0] = m_own_scratch;
  for (int i = 1; i < m_size && !own_vote.is_refusal(); ++i) {
    const int rank = (context.rank + i) % m_size;
    const scratch_address& peer = all[rank].value;
    const std::string name = "rank " + std::to_string(rank);
    const bool is_same_process = context.process_of[rank] == context.process_of[context.rank];
    // Compare bus ids: the ordinals of different processes can name different devices.
    const bool shares_device = std::strcmp(peer.bus_id, all[context.rank].value.bus_id) == 0;
    // Kernels wait for each other. A device time-slices the kernels of several processes, but not those
    // of one process.
    if (shares_device && (is_same_process || !m_may_share_device))
      return own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED,
                             "shares its device with " + name + "; peer memory needs one device per rank");
    // A device that is hidden from this process (CUDA_VISIBLE_DEVICES) may still be accessible: the test is to
    // open its memory.
    const int ordinal = gpu_ordinal(peer.bus_id);
    int is_reachable = 1;
    gpu_error code = gpu_success;
    if (ordinal >= 0 && !shares_device) code = gpu_can_access_peer(&is_reachable, m_device, ordinal);
    if (code != gpu_success || !is_reachable)
      return own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, "its device cannot access the memory of " + name);
    if (is_same_process) {
      code = gpu_enable_peer(ordinal);
      m_scratch[i] = peer.pointer;
    } else {
      void* imported = nullptr;
      code = gpu_ipc_open(&imported, peer.handle);
      if (code == gpu_success) m_imported_scratch.push_back(static_cast<std::byte*>(imported));
      m_scratch[i] = static_cast<std::byte*>(imported);
    }
    if (code != gpu_success) refuse(own_vote, ("cannot map the memory of " + name).c_str(), code);
  }
}

std::size_t peer_scratch::abandon_scratch() {
  m_own_scratch = nullptr;
  return scratch_bytes();
}

peer_scratch::~peer_scratch() {
  if (m_device < 0) return;
  const device_guard guard(m_device);
  for (std::byte* imported : m_imported_scratch) (void)gpu_ipc_close(imported);
  // cudaFree waits for the device, so this rank's kernels have finished with the scratch. So have those of its
  // peers, because a rank that completed a reduction has received data from all peers, and messages are acknowledged
  // (p2p_backend.cpp, drain_channels).
  if (m_own_scratch) (void)gpu_free(m_own_scratch);
  if (m_flags) (void)gpu_host_free(m_flags);
}

}  // namespace isthmus::p2p
