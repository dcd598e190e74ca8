#include "memory/pool/block_table.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "memory/pool/device_memory.hpp"
#include "memory/pool/memory_source.hpp"

namespace isthmus {
namespace {

bool is_same_device(isthmus_device a, isthmus_device b) {
  return a.platform == b.platform && a.ordinal == b.ordinal;
}

}  // namespace

block_table& block_table::instance() {
  static block_table& instance_storage = *new block_table;
  return instance_storage;
}

void block_table::insert(const memory_block& block) {
  const std::lock_guard lock(m_mutex);
  m_blocks.insert_or_assign(block.begin, block);
}

block_table::blocks::const_iterator block_table::find_containing(std::uintptr_t address) const {
  auto after = m_blocks.upper_bound(address);
  if (after == m_blocks.begin()) return m_blocks.end();
  const auto candidate = std::prev(after);
  return address - candidate->first < candidate->second.bytes ? candidate : m_blocks.end();
}

std::optional<memory_block> block_table::find(const void* pointer) const {
  const std::lock_guard lock(m_mutex);
  const auto position = find_containing(reinterpret_cast<std::uintptr_t>(pointer));
  if (position == m_blocks.end()) return std::nullopt;
  return position->second;
}

void block_table::fail(const void* pointer, const char* function) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (const auto position = find_containing(address); position != m_blocks.end())
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("{}: pointer = {} is {} bytes after the start of a block of {} bytes on {}; it "
                    "must be the start of a block",
                    function, pointer, address - position->first, position->second.bytes,
                    format_device(position->second.owner->device())),
        "pass the start of the block");
  for (std::size_t age = 1; age <= m_freed_blocks.size(); ++age) {
    const freed_block& old =
        m_freed_blocks[(m_next_freed + m_freed_blocks.size() - age) % m_freed_blocks.size()];
    if (old.begin == address)
      throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                       fmt::format("{}: pointer = {} was already freed; it was a block of {} bytes on {}",
                                   function, pointer, old.bytes, format_device(old.device)),
                       "free each block once");
  }
  throw make_error(
      ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
      fmt::format("{}: pointer = {} is not a block of isthmus_memory_allocate_device ({} live)", function,
                  pointer, m_blocks.size()),
      "free blocks of a symmetric heap with isthmus_memory_free_symmetric and their communicator, and other "
      "blocks with their own allocator");
}

block_table::blocks::const_iterator block_table::find_owned(isthmus_device device, const void* pointer,
                                                            const char* function) const {
  const auto position = m_blocks.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (position == m_blocks.end()) fail(pointer, function);
  const isthmus_device owner = position->second.owner->device();
  if (!is_same_device(owner, device))
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("{}: pointer = {} is a block of {}, not of {}", function, pointer,
                                 format_device(owner), format_device(device)),
                     "pass the device that the block was allocated on");
  return position;
}

memory_block block_table::remove(isthmus_device device, const void* pointer, const char* function) {
  const std::lock_guard lock(m_mutex);
  const auto position = find_owned(device, pointer, function);
  const memory_block block = position->second;
  m_blocks.erase(position);
  m_freed_blocks[m_next_freed] = {block.begin, block.bytes, device};
  m_next_freed = (m_next_freed + 1) % m_freed_blocks.size();
  return block;
}

memory_block block_table::lookup(isthmus_device device, const void* pointer, const char* function) const {
  const std::lock_guard lock(m_mutex);
  return find_owned(device, pointer, function)->second;
}

block_table::totals block_table::live_totals() const {
  const std::lock_guard lock(m_mutex);
  totals result{m_blocks.size(), 0};
  for (const auto& [begin, block] : m_blocks) result.bytes += block.bytes;
  return result;
}

block_table::totals block_table::live_totals(const device_memory* owner, std::size_t provider) const {
  const std::lock_guard lock(m_mutex);
  totals result{0, 0};
  for (const auto& [begin, block] : m_blocks) {
    if (block.owner != owner || block.provider != provider) continue;
    ++result.blocks;
    result.bytes += block.bytes;
  }
  return result;
}

}  // namespace isthmus
