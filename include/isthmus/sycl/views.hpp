// Provides access to the buffers of one or more requests. A buffer that is used several times (in place, or in
// several operations of a group) gets only one accessor, because two host accessors to the same buffer in one
// thread would deadlock.
#ifndef ISTHMUS_SYCL_VIEWS_HPP
#define ISTHMUS_SYCL_VIEWS_HPP

#include <array>
#include <isthmus/sycl/request.hpp>
#include <optional>
#include <variant>
#include <vector>

namespace isthmus::detail {

/// The use of one buffer by an operation or a group.
struct buffer_use {
  byte_buffer buffer;
  const void* identity;  // the user's buffer object
  bool is_read;          // any operation sends from it
  bool is_written;       // any operation receives into it
  bool is_overwritten;   // every byte is written and none is read
};

/// The distinct buffers of a set of requests. Buffers are compared with SYCL's operator==, so copies count
/// as the same buffer. Two sub-buffers of one buffer are distinguished by the addresses of the user's
/// objects, and rejected.
class buffer_uses {
 public:
  /// Adds the buffers that the request reads and writes on this rank. A buffer counts as overwritten only if a
  /// receive fills all of it. Its contents then do not have to be copied to the host first.
  void add(const collective_request& request) {
    if (request.is_sender()) add(request, request.send, true, false);
    if (request.is_receiver()) {
      const bool has_equal_blocks = request.row().recv_extent != buffer_extent::COUNTS;
      const std::uint64_t bytes = request.recv_elements() * datatype_bytes[request.operation.datatype];
      add(request, request.recv, false,
          has_equal_blocks && request.recv.buffer && bytes == request.recv.buffer->byte_size());
    }
  }

  // Returns whether add() accepts the request and there are at most `max` buffers then.
  bool can_add(const collective_request& request, std::size_t max) const {
    std::size_t size = m_uses.size();
    for (const erased_operand* operand :
         {request.is_sender() ? &request.send : nullptr, request.is_receiver() ? &request.recv : nullptr}) {
      if (operand == nullptr || !operand->buffer) continue;
      for (const buffer_use& entry : m_uses)
        if (overlap(entry, *operand)) return false;
      size += index_of(*operand) == m_uses.size() ? 1 : 0;
    }
    return size <= max;
  }

  // Returns the index of the operand's buffer in all(); all().size() if this rank does not use it.
  std::size_t index_of(const erased_operand& operand) const {
    std::size_t index = 0;
    while (index < m_uses.size() && !(m_uses[index].buffer == *operand.buffer)) ++index;
    return index;
  }
  const std::vector<buffer_use>& all() const { return m_uses; }

 private:
  // Two sub-buffers of one buffer, or a buffer and its sub-buffer.
  static bool overlap(const buffer_use& entry, const erased_operand& operand) {
    return entry.buffer == *operand.buffer && entry.identity != operand.identity &&
           (entry.buffer.is_sub_buffer() || operand.buffer->is_sub_buffer());
  }

  void add(const collective_request& request, const erased_operand& operand, bool is_read,
           bool is_overwritten) {
    if (!operand.buffer) return;
    for (buffer_use& entry : m_uses) {
      if (!(entry.buffer == *operand.buffer)) continue;
      if (overlap(entry, operand)) {
        throw request.error(
            ISTHMUS_ERROR_UNSUPPORTED,
            "two sub-buffers of one buffer in one operation or group; each buffer can have only "
            "one accessor",
            "pass the whole buffer with at_offset(buffer, offset), or use USM");
      }
      entry.is_read |= is_read;
      entry.is_written |= !is_read;
      entry.is_overwritten = false;
      return;
    }
    m_uses.push_back({*operand.buffer, operand.identity, is_read, !is_read, is_overwritten});
  }

  std::vector<buffer_use> m_uses;
};

// Host accessors to the buffers. The constructor waits until the data is on the host, and the destructor lets
// the device continue.
class host_views {
 public:
  explicit host_views(const buffer_uses& uses) : m_uses(&uses) {
    m_accessors.reserve(uses.all().size());
    for (const buffer_use& entry : uses.all()) {
      byte_buffer buffer = entry.buffer;  // accessors take a non-const reference
      if (!entry.is_written) {
        m_accessors.emplace_back(reader(buffer, sycl::read_only));
      } else if (entry.is_overwritten) {
        m_accessors.emplace_back(writer(buffer, sycl::write_only, sycl::no_init));
      } else {
        m_accessors.emplace_back(updater(buffer, sycl::read_write));
      }
    }
  }

  // Returns the address of an operand; NULL for a buffer that this rank does not use.
  void* address(const erased_operand& operand) const {
    if (!operand.buffer) return operand.pointer;
    const std::size_t index = m_uses->index_of(operand);
    if (index == m_accessors.size()) return nullptr;
    unsigned char* start = std::visit(
        [](const auto& accessor) { return const_cast<unsigned char*>(&accessor[0]); }, m_accessors[index]);
    return start + operand.offset_bytes;
  }

 private:
  using reader = sycl::host_accessor<unsigned char, 1, sycl::access_mode::read>;
  using writer = sycl::host_accessor<unsigned char, 1, sycl::access_mode::write>;
  using updater = sycl::host_accessor<unsigned char, 1, sycl::access_mode::read_write>;

  const buffer_uses* m_uses;
  std::vector<std::variant<reader, writer, updater>> m_accessors;
};

// The accessors of a command group. They are stored in the object itself, not on the heap, because AdaptiveCpp
// finds accessors by their address in the command's lambda. All accessors have the mode read_write.
template <sycl::target Target>
class command_views {
 public:
  using accessor = sycl::accessor<unsigned char, 1, sycl::access_mode::read_write, Target>;
  static constexpr std::size_t max_buffers = 2;  // as many as one request has

  command_views(const buffer_uses& uses, sycl::handler& handler) {
    for (std::size_t i = 0; i < uses.all().size(); ++i) {
      byte_buffer buffer = uses.all()[i].buffer;  // accessors take a non-const reference
      m_accessors.at(i).emplace(buffer, handler);
    }
  }
  const accessor& at(std::size_t index) const { return *m_accessors[index]; }

 private:
  std::array<std::optional<accessor>, max_buffers> m_accessors;
};

}  // namespace isthmus::detail

#endif
