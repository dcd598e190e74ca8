#include "core/handles.hpp"

#include <pthread.h>

#include "base/error.hpp"
#include "core/communicator.hpp"

namespace isthmus {

// Never destroyed: handles can still be checked while the process exits.
handle_table& handle_table::make() {
  auto* const table = new handle_table;
  pthread_atfork([] { instance().m_mutex.lock(); }, [] { instance().m_mutex.unlock(); },
                 [] { instance().invalidate_all(); });
  return *table;
}

// Runs in a forked child. The communicators belong to the parent process, which still uses their shared memory
// and connections. The child must not destroy them, so it only invalidates the handles.
void handle_table::invalidate_all() {
  for (std::uint32_t index = 0; index < m_size.load(std::memory_order_relaxed); ++index) {
    entry& slot = (*m_chunks[index / chunk_entries])[index % chunk_entries];
    slot.object.store(nullptr, std::memory_order_relaxed);
    slot.generation.store((slot.generation.load(std::memory_order_relaxed) + 1) & 0xfffffffu,
                          std::memory_order_relaxed);
  }
  m_mutex.unlock();
}

isthmus_communicator handle_table::insert(std::shared_ptr<communicator> object) {
  const std::lock_guard lock(m_mutex);
  std::uint32_t index = 0;
  if (!m_free_indices.empty()) {
    index = m_free_indices.back();
    m_free_indices.pop_back();
  } else {
    index = m_size.load(std::memory_order_relaxed);
    if (index / chunk_entries >= max_chunks)
      throw make_error(
          ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE,
          fmt::format("communicator: {} communicators are live in this process, which is the maximum", index),
          "destroy communicators that are no longer used");
    auto& slot = m_chunks[index / chunk_entries];
    if (!slot) slot = std::make_unique<chunk>();
    m_size.store(index + 1, std::memory_order_release);
  }
  entry& slot = (*m_chunks[index / chunk_entries])[index % chunk_entries];
  const std::uint32_t generation = (slot.generation.load(std::memory_order_relaxed) + 1) & 0xfffffffu;
  slot.owner = std::move(object);
  slot.object.store(slot.owner.get(), std::memory_order_release);
  slot.generation.store(generation, std::memory_order_release);
  const std::uint64_t bits = (handle_tag << 48) | (std::uint64_t{generation} << 20) | index;
  return reinterpret_cast<isthmus_communicator>(bits);
}

handle_table::entry& handle_table::find_live_entry(isthmus_communicator handle) {
  const handle_fields fields = split(handle);
  if (fields.tag != handle_tag || fields.index >= m_size.load(std::memory_order_acquire)) fail(handle);
  entry& slot = (*m_chunks[fields.index / chunk_entries])[fields.index % chunk_entries];
  if (slot.generation.load(std::memory_order_relaxed) != fields.generation || !slot.owner) fail(handle);
  return slot;
}

std::shared_ptr<communicator> handle_table::remove(isthmus_communicator handle) {
  const std::lock_guard lock(m_mutex);
  entry& slot = find_live_entry(handle);
  slot.object.store(nullptr, std::memory_order_release);
  m_free_indices.push_back(split(handle).index);
  return std::move(slot.owner);
}

std::shared_ptr<communicator> handle_table::share(isthmus_communicator handle) {
  const std::lock_guard lock(m_mutex);
  return find_live_entry(handle).owner;
}

void handle_table::fail(isthmus_communicator handle) {
  if (handle == nullptr)
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                     "communicator is NULL: must be a live communicator",
                     "check the status of the call that created it");
  throw make_error(
      ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
      fmt::format("communicator = {} is not a live communicator", static_cast<void*>(handle)),
      "pass a handle from an isthmus_communicator_create function that has not been destroyed; handles of the "
      "parent process are invalid after fork");
}

}  // namespace isthmus
