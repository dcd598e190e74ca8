// Maps communicator handles to objects. A handle is not an address but a triple (tag, generation, index). A
// destroyed or foreign handle is therefore detected without an access to freed memory.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <isthmus/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace isthmus {

class communicator;

class handle_table {
 public:
  static handle_table& instance() {
    static handle_table& table = make();
    return table;
  }

  isthmus_communicator insert(std::shared_ptr<communicator> object);

  // Invalidates the handle and returns its object. Errors: throws error (INVALID_USAGE) if the
  // handle is not live.
  std::shared_ptr<communicator> remove(isthmus_communicator handle);

  // Returns shared ownership, for calls that may race with destroy, such as abort.
  std::shared_ptr<communicator> share(isthmus_communicator handle);

  // Call path: two loads. Lifetime: the API forbids destroy during a call, so the object stays alive.
  communicator& find(isthmus_communicator handle) const {
    const handle_fields fields = split(handle);
    if (fields.tag == handle_tag && fields.index < m_size.load(std::memory_order_acquire)) {
      const entry& slot = (*m_chunks[fields.index / chunk_entries])[fields.index % chunk_entries];
      if (slot.generation.load(std::memory_order_acquire) == fields.generation) {
        communicator* object = slot.object.load(std::memory_order_acquire);
        if (object != nullptr) return *object;
      }
    }
    fail(handle);
  }

 private:
  static constexpr std::uint64_t handle_tag = 0x4953;  // "IS": never the top bits of an address
  static constexpr std::size_t chunk_entries = 256, max_chunks = 4096;

  struct entry {
    std::atomic<std::uint32_t> generation{0};
    std::atomic<communicator*> object{nullptr};
    std::shared_ptr<communicator> owner;  // guarded by m_mutex
  };
  using chunk = std::array<entry, chunk_entries>;
  struct handle_fields {
    std::uint64_t tag;
    std::uint32_t generation;  // 28 bits
    std::uint32_t index;       // 20 bits
  };

  static handle_fields split(isthmus_communicator handle) {
    static_assert(sizeof(void*) == 8, "handles pack a tag, a generation and an index into 64 bits");
    const auto bits = reinterpret_cast<std::uintptr_t>(handle);
    return {bits >> 48, static_cast<std::uint32_t>(bits >> 20) & 0xfffffffu,
            static_cast<std::uint32_t>(bits) & 0xfffffu};
  }
  static handle_table& make();
  void invalidate_all();
  entry& find_live_entry(isthmus_communicator handle);
  [[noreturn, gnu::cold]] static void fail(isthmus_communicator handle);

  std::mutex m_mutex;
  std::atomic<std::uint32_t> m_size{0};
  std::array<std::unique_ptr<chunk>, max_chunks> m_chunks;  // chunks are never freed
  std::vector<std::uint32_t> m_free_indices;
};

}  // namespace isthmus
