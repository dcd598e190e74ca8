#include "memory/heap/heap_source.hpp"

#include <cstring>

#include "memory/heap/device_heap_source.hpp"
#include "memory/segment.hpp"

namespace isthmus {
namespace {

class host_piece final : public heap_piece {
 public:
  explicit host_piece(std::shared_ptr<shared_segment> segment) : m_segment(std::move(segment)) {}
  void* data() const override { return m_segment->data(); }
  void end_export() override { m_segment->close_descriptor(); }

 private:
  std::shared_ptr<shared_segment> m_segment;
};

class host_source final : public heap_source {
 public:
  std::uint64_t granularity() override { return 0; }
  new_piece create(std::uint64_t bytes) override {
    auto segment = shared_segment::create(bytes);
    const segment_address where = segment->address();
    new_piece made{std::make_shared<host_piece>(std::move(segment)), {}};
    static_assert(sizeof where <= sizeof made.address);
    std::memcpy(made.address.bytes.data(), &where, sizeof where);
    return made;
  }
  std::shared_ptr<heap_piece> open(const piece_address& address, std::string&) override {
    segment_address where{};
    std::memcpy(&where, address.bytes.data(), sizeof where);
    return std::make_shared<host_piece>(shared_segment::open(where));
  }
  bool can_fall_back() const override { return false; }
  void fall_back() override {}
  bool outlives_peers() const override { return false; }
  void clear(void* pointer, std::uint64_t bytes) override { std::memset(pointer, 0, bytes); }
};

}  // namespace

std::unique_ptr<heap_source> heap_source::make(isthmus_device device) {
  if (device.platform == ISTHMUS_PLATFORM_HOST) return std::make_unique<host_source>();
  return make_device_heap_source(device);
}

}  // namespace isthmus
