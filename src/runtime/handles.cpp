#include "runtime/handles.hpp"

#include "runtime/communicator.hpp"
#include "runtime/error.hpp"

namespace isthmus {

handle_table& handle_table::instance() {
  static auto* table = new handle_table;  // never destroyed: handles may be checked while the process ends
  return *table;
}

isthmus_communicator handle_table::insert(std::shared_ptr<communicator> object) {
  const std::lock_guard lock(m_mutex);
  std::uint32_t index = 0;
  if (!m_free.empty()) {
    index = m_free.back();
    m_free.pop_back();
  } else {
    index = m_size.load(std::memory_order_relaxed);
    if (index / chunk_slots >= max_chunks)
      throw make_error(
          ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE,
          fmt::format("{} communicators are live in this process, the most that is possible", index),
          "destroy communicators that are no longer used");
    auto& place = m_chunks[index / chunk_slots];
    if (!place) place = std::make_unique<chunk>();
    m_size.store(index + 1, std::memory_order_release);
  }
  slot& place = (*m_chunks[index / chunk_slots])[index % chunk_slots];
  const std::uint32_t generation = (place.generation.load(std::memory_order_relaxed) + 1) & 0xfffffffu;
  place.owner = std::move(object);
  place.object.store(place.owner.get(), std::memory_order_release);
  place.generation.store(generation, std::memory_order_release);
  const std::uint64_t bits = (handle_tag << 48) | (std::uint64_t{generation} << 20) | index;
  return reinterpret_cast<isthmus_communicator>(bits);
}

handle_table::slot& handle_table::live_slot(isthmus_communicator handle) {
  const parts wanted = split(handle);
  if (wanted.tag != handle_tag || wanted.slot >= m_size.load(std::memory_order_acquire)) fail(handle);
  slot& place = (*m_chunks[wanted.slot / chunk_slots])[wanted.slot % chunk_slots];
  if (place.generation.load(std::memory_order_relaxed) != wanted.generation || !place.owner) fail(handle);
  return place;
}

std::shared_ptr<communicator> handle_table::remove(isthmus_communicator handle) {
  const std::lock_guard lock(m_mutex);
  slot& place = live_slot(handle);
  place.object.store(nullptr, std::memory_order_release);
  m_free.push_back(split(handle).slot);
  return std::move(place.owner);
}

std::shared_ptr<communicator> handle_table::share(isthmus_communicator handle) {
  const std::lock_guard lock(m_mutex);
  return live_slot(handle).owner;
}

void handle_table::fail(isthmus_communicator handle) {
  if (handle == nullptr)
    throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                     "communicator is NULL: must be a live communicator",
                     "check the status of the call that created it");
  throw make_error(ISTHMUS_ERROR_INVALID_USAGE, ISTHMUS_HERE,
                   fmt::format("communicator = {} is not a live communicator", static_cast<void*>(handle)),
                   "it was destroyed, or it never came from an isthmus_communicator_create function");
}

}  // namespace isthmus
