#include "backend/p2p/peers.hpp"

#include <cstdio>
#include <cstring>

#include "backend/p2p/device_guard.hpp"

namespace isthmus::p2p {

// What every rank tells the others. Plain bytes: it crosses process borders.
struct peers::offer {
  char reason[160];  // "" when this rank can
  std::byte* pointer;
  gpu_ipc_handle handle;
  char bus_id[32];
};

namespace {

void say(char (&reason)[160], const char* what, gpu_error code) {
  std::snprintf(reason, sizeof(reason), "%s: %s", what, gpu_error_text(code));
}

}  // namespace

peers::peers(const isthmus_backend_context& context) : m_size(context.size) {
  const offer mine = make_offer(context);
  std::vector<offer> offers(m_size);
  if (context.allgather(context.runtime, &mine, offers.data(), sizeof(offer)) != ISTHMUS_SUCCESS) {
    m_reason = "the ranks could not exchange their addresses";
    return;
  }
  for (int rank = 0; rank < m_size && m_reason.empty(); ++rank)
    if (offers[rank].reason[0]) m_reason = "rank " + std::to_string(rank) + ": " + offers[rank].reason;

  // A second round: mapping may still fail on one rank, and nobody may write before all have mapped.
  char mapped[160] = {};
  if (m_reason.empty()) copy_reason(mapped, map(context, offers));
  std::vector<char> all(std::size_t(m_size) * sizeof(mapped));
  if (context.allgather(context.runtime, mapped, all.data(), sizeof(mapped)) != ISTHMUS_SUCCESS &&
      m_reason.empty())
    m_reason = "the ranks could not exchange their addresses";
  for (int rank = 0; rank < m_size && m_reason.empty(); ++rank)
    if (const char* reason = all.data() + rank * sizeof(mapped); *reason)
      m_reason = "rank " + std::to_string(rank) + ": " + reason;
}

peers::offer peers::make_offer(const isthmus_backend_context& context) {
  offer offer{};
  if (context.size > max_ranks) {
    std::snprintf(offer.reason, sizeof(offer.reason), "%d ranks, at most %d are possible", context.size,
                  max_ranks);
    return offer;
  }
  if (context.node_size != context.size) {
    std::snprintf(offer.reason, sizeof(offer.reason), "the ranks are on several machines");
    return offer;
  }
  const device_guard guard(context.device.ordinal);
  if (guard.code() != gpu_success) {
    say(offer.reason, "no such device", guard.code());
    return offer;
  }
  m_device = context.device.ordinal;
  const std::size_t bytes = scratch_bytes(m_size);
  gpu_error code = gpu_malloc(reinterpret_cast<void**>(&m_own), bytes);
  if (code != gpu_success) {
    say(offer.reason, "no device memory for the scratch", code);
    m_native_code = code;
    return offer;
  }
  // "Not yet" everywhere in the inbox; steps and packets start at zero, packet flags at one.
  control control{};
  for (auto& step : control.packet_step) step = 1;
  code = gpu_memset(m_own, 0xff, bytes);
  if (code == gpu_success) code = gpu_memset(m_own + packet_offset(m_size), 0, bytes - packet_offset(m_size));
  if (code == gpu_success) code = gpu_copy(m_own, &control, sizeof(control));
  if (code == gpu_success) code = gpu_host_alloc(reinterpret_cast<void**>(&m_flags), sizeof(host_flags));
  if (code == gpu_success) code = load_reductions(m_size);
  if (code == gpu_success) code = load_moves();
  if (code == gpu_success) code = gpu_synchronize_device();
  if (code == gpu_success) code = gpu_ipc_export(&offer.handle, m_own);
  if (code == gpu_success) code = gpu_bus_id(offer.bus_id, sizeof(offer.bus_id), m_device);
  if (code != gpu_success) {
    say(offer.reason, "preparing the scratch", code);
    m_native_code = code;
    return offer;
  }
  m_flags->abort = 0;
  m_flags->expired = 0;
  offer.pointer = m_own;
  return offer;
}

std::string peers::map(const isthmus_backend_context& context, const std::vector<offer>& offers) {
  const device_guard guard(m_device);
  m_scratch.assign(m_size, nullptr);
  m_scratch[0] = m_own;
  for (int i = 1; i < m_size; ++i) {
    const int rank = (context.rank + i) % m_size;
    const offer& peer = offers[rank];
    // By bus: ordinals of several processes need not mean the same device.
    if (std::strcmp(peer.bus_id, offers[context.rank].bus_id) == 0)
      return "shares its device with rank " + std::to_string(rank) +
             "; peer memory needs a device for each rank";
    int ordinal = -1, reachable = 0;
    gpu_error code = gpu_ordinal(&ordinal, peer.bus_id);
    if (code == gpu_success) code = gpu_can_access_peer(&reachable, m_device, ordinal);
    if (code != gpu_success || !reachable)
      return "its device cannot access the memory of rank " + std::to_string(rank);
    if (context.process_of[rank] == context.process_of[context.rank]) {
      code = gpu_enable_peer(ordinal);
      m_scratch[i] = peer.pointer;
    } else {
      void* opened = nullptr;
      code = gpu_ipc_open(&opened, peer.handle);
      if (code == gpu_success) m_opened.push_back(static_cast<std::byte*>(opened));
      m_scratch[i] = static_cast<std::byte*>(opened);
    }
    if (code != gpu_success) {
      m_native_code = code;
      return "cannot map the memory of rank " + std::to_string(rank) + ": " + gpu_error_text(code);
    }
  }
  return {};
}

peers::~peers() {
  if (m_device < 0) return;
  const device_guard guard(m_device);
  for (std::byte* opened : m_opened) (void)gpu_ipc_close(opened);
  // cudaFree waits for the device, so no kernel of this rank uses the scratch any more. A rank that
  // finished a collective has heard from all others, so theirs have nothing to send to it either.
  if (m_own) (void)gpu_free(m_own);
  if (m_flags) (void)gpu_host_free(m_flags);
}

}  // namespace isthmus::p2p
