#include "memory/heap/heap_source.hpp"

#include <cstring>

#include "memory/heap/device_heap_source.hpp"
#include "memory/segment.hpp"

namespace isthmus {
namespace {

class host_segment final : public heap_segment {
 public:
  explicit host_segment(std::shared_ptr<shared_segment> segment) : m_segment(std::move(segment)) {}
  void* data() const override { return m_segment->data(); }
  void end_export() override { m_segment->close_descriptor(); }

 private:
  std::shared_ptr<shared_segment> m_segment;
};

class host_source final : public heap_source {
 public:
  std::uint64_t granularity() override { return 0; }
  new_heap_segment create(std::uint64_t bytes) override {
    auto segment = shared_segment::create(bytes);
    const segment_address address_data = segment->address();
    new_heap_segment result{std::make_shared<host_segment>(std::move(segment)), {}};
    static_assert(sizeof address_data <= sizeof result.address);
    std::memcpy(result.address.bytes.data(), &address_data, sizeof address_data);
    return result;
  }
  std::shared_ptr<heap_segment> open(const heap_segment_address& address, std::string&) override {
    segment_address address_data{};
    std::memcpy(&address_data, address.bytes.data(), sizeof address_data);
    return std::make_shared<host_segment>(shared_segment::open(address_data));
  }
  bool can_fall_back() const override { return false; }
  void fall_back() override {}
  bool must_outlive_peers() const override { return false; }
  void clear(void* pointer, std::uint64_t bytes) override { std::memset(pointer, 0, bytes); }
};

}  // namespace

std::unique_ptr<heap_source> heap_source::make(isthmus_device device) {
  if (device.platform == ISTHMUS_PLATFORM_HOST) return std::make_unique<host_source>();
  return make_device_heap_source(device);
}

}  // namespace isthmus
