#include "fused/device_board.hpp"

#include "runtime/error.hpp"

namespace isthmus::fused {
namespace {

std::vector<void*> peers_of(communicator& owner, void* block) {
  isthmus_heap_block found{};
  owner.heap().find(block, 1, &found, nullptr);
  std::vector<void*> peers(found.peers, found.peers + owner.ranks().size);
  for (std::size_t rank = 0; rank < peers.size(); ++rank)
    if (peers[rank] == nullptr)
      throw make_error(
          ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
          fmt::format("fused_plan_create: this rank's device cannot reach memory of rank {}", rank),
          "ISTHMUS_FUSED_SEQUENTIAL needs no peer access");
  return peers;
}

}  // namespace

device_board::device_board(communicator& owner, device_driver& driver, std::uint64_t stage_bytes)
    : m_owner(owner),
      m_driver(driver),
      m_size(owner.ranks().size),
      m_rank(owner.ranks().rank),
      m_device(owner.ranks().device.ordinal),
      m_stage_bytes(stage_bytes) {
  const std::uint64_t words = 2 * static_cast<std::uint64_t>(m_size) * word_gap;
  m_own_words = owner.allocate_symmetric(words * sizeof(std::uint32_t));
  m_words = peers_of(owner, m_own_words);
  for (const auto priority : {stream_priority::high, stream_priority::normal})
    m_rescuers.push_back(driver.create_stream(m_device, priority));
  driver.fill(m_device, m_own_words, 0, words * sizeof(std::uint32_t), m_rescuers[0]);
  driver.synchronize(m_device, m_rescuers[0]);
  m_own_stage = owner.allocate_symmetric(stage_bytes);  // collective: nobody writes words before all are zero
  m_stages = peers_of(owner, m_own_stage);
}

device_board::~device_board() {
  for (const native_stream stream : m_rescuers) m_driver.destroy_stream(m_device, stream);
  for (void* block : {m_own_stage, m_own_words}) {
    try {
      if (block != nullptr) m_owner.heap().free(block);
    } catch (const error&) {  // NOLINT(bugprone-empty-catch)
      // The communicator was destroyed first, and its heap with it.
    }
  }
}

void device_board::release_all() {
  // Ahead of every value that a run still waits for, and not so far that the difference wraps.
  constexpr std::uint32_t ahead = std::uint32_t{1} << 30;
  for (const native_stream stream : m_rescuers)
    for (int index = 0; index < 2 * m_size; ++index)
      m_driver.write_word(m_device, word(m_rank, index), ahead, stream);
}

}  // namespace isthmus::fused
