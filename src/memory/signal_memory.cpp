#include "memory/signal_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/error.hpp"

namespace isthmus {
namespace {

constexpr std::uint64_t segment_bytes = 256 << 10;
// The header of a block contains the number of ranks that have not released it.
constexpr std::uint64_t block_header_bytes = 256;

std::uint64_t round_to_block(std::uint64_t bytes) {
  return (bytes + block_header_bytes - 1) / block_header_bytes * block_header_bytes;
}

std::atomic_ref<std::uint32_t> users_of(void* block) {
  return std::atomic_ref(
      *reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(block) - block_header_bytes));
}

// The segments of this process, and those of peers. It is never destroyed, because streams may still use the memory
// when the process ends.
class signal_segments {
 public:
  static signal_segments& of(device_driver& driver);

  std::pair<void*, signal_block_address> take(std::uint64_t bytes, int users);
  void* open(const signal_block_address& address);

 private:
  struct block {
    shared_segment* segment;
    std::uint64_t offset, bytes;  // the header is before the offset
    std::byte* begin() const { return segment->data() + offset; }
  };
  explicit signal_segments(device_driver& driver) : m_driver(driver) {}
  shared_segment& pin(std::shared_ptr<shared_segment> segment);
  block& find_block(std::uint64_t bytes);

  device_driver& m_driver;
  std::mutex m_mutex;
  std::map<std::array<std::uint64_t, 2>, std::shared_ptr<shared_segment>> m_pinned;  // by cookie
  std::vector<block> m_blocks;                                                       // of this process
  shared_segment* m_latest = nullptr;                                                // of this process
  std::uint64_t m_used_bytes = 0;                                                    // of m_latest
};

// A forked child gets segments of its own: it shares the memory of its parent.
signal_segments& signal_segments::of(device_driver& driver) {
  static std::mutex mutex;
  static auto* const all = new std::map<std::pair<device_driver*, pid_t>, std::unique_ptr<signal_segments>>;
  const std::lock_guard lock(mutex);
  auto& found = (*all)[{&driver, getpid()}];
  if (!found) found.reset(new signal_segments(driver));
  return *found;
}

shared_segment& signal_segments::pin(std::shared_ptr<shared_segment> segment) {
  auto& known = m_pinned[segment->address().cookie];
  if (!known) {
    m_driver.register_host(segment->data(), segment->address().bytes);
    known = std::move(segment);
  }
  return *known;
}

signal_segments::block& signal_segments::find_block(std::uint64_t bytes) {
  for (block& each : m_blocks)
    if (each.bytes >= bytes && users_of(each.begin()).load(std::memory_order_acquire) == 0) return each;
  const std::uint64_t needed = block_header_bytes + bytes;
  if (m_latest == nullptr || m_used_bytes + needed > m_latest->address().bytes) {
    m_latest = &pin(shared_segment::create(std::max(segment_bytes, needed), segment_use::internal));
    m_used_bytes = 0;
  }
  m_used_bytes += needed;
  return m_blocks.emplace_back(block{m_latest, m_used_bytes - bytes, bytes});
}

std::pair<void*, signal_block_address> signal_segments::take(std::uint64_t bytes, int users) {
  const std::lock_guard lock(m_mutex);
  const block& taken = find_block(round_to_block(bytes));
  std::memset(taken.begin(), 0, taken.bytes);
  users_of(taken.begin()).store(static_cast<std::uint32_t>(users), std::memory_order_release);
  return {taken.begin(), {taken.segment->address(), taken.offset}};
}

void* signal_segments::open(const signal_block_address& address) {
  const std::lock_guard lock(m_mutex);
  return pin(shared_segment::open(address.segment, segment_use::internal)).data() + address.offset;
}

}  // namespace

signal_memory::signal_memory(device_driver& driver, int size, std::uint64_t bytes)
    : m_driver(&driver), m_process(getpid()) {
  std::tie(m_own, m_address) = signal_segments::of(driver).take(bytes, size);
}

void signal_memory::open(std::span<const signal_block_address> all) {
  std::vector<void*> opened;
  for (const signal_block_address& each : all) opened.push_back(signal_segments::of(*m_driver).open(each));
  m_blocks = std::move(opened);
}

void signal_memory::discard() noexcept {
  if (m_own != nullptr) users_of(m_own).store(0, std::memory_order_release);
  m_own = nullptr;
}

// A forked child must not release the blocks of its parent.
signal_memory::~signal_memory() {
  if (m_process != getpid()) return;
  for (void* block : m_blocks) users_of(block).fetch_sub(1, std::memory_order_acq_rel);
}

void signal_memory::swap(signal_memory& other) noexcept {
  std::swap(m_driver, other.m_driver);
  std::swap(m_process, other.m_process);
  std::swap(m_own, other.m_own);
  std::swap(m_address, other.m_address);
  std::swap(m_blocks, other.m_blocks);
}

}  // namespace isthmus
