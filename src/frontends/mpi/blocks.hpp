// Datatypes and buffers of MPI calls.
#pragma once

#include <isthmus/isthmus.h>
#include <isthmus/types.h>
#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <vector>

namespace isthmus::mpi_shim {

// ---- datatypes and operations ----

// Memory layout of a datatype. Dense: no gaps within or between elements, and bytes are in memory order.
struct datatype_layout {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  std::uint64_t bytes = 0;
  std::int64_t extent = 0;
  bool is_dense = true;
};

// Returns false if `type` is not a valid datatype. The caller passes the call to MPI, which reports the error.
bool find_layout(MPI_Datatype type, datatype_layout& result);

// A predefined datatype and operation that Isthmus can reduce under the rules of MPI.
struct reduction_mapping {
  isthmus_datatype type;
  isthmus_reduction_op op;
  std::uint64_t values_per_element;  // per element: 2 for complex types
  std::uint64_t bytes;               // of one element
};

enum class reduction_support { supported, unsupported_type, unsupported_op };
// Uses only arguments that MPI requires to be equal on all ranks.
reduction_support find_reduction(MPI_Datatype type, MPI_Op op, reduction_mapping& result);

// ---- buffers ----
//
// Buffers of data movement collectives as contiguous bytes. Ranks may use different datatypes if the
// signatures match, so a rank must not pass a call to MPI because of its own datatype. Datatypes with gaps
// are packed instead.

// Copies elements from a user buffer to contiguous memory, or back, in the order of the datatype.
// Errors: returns MPI's error code, which MPI has already passed to the communicator's error handler.
int pack_elements(const void* source, std::uint64_t count, const datatype_layout& layout, char* destination,
                  MPI_Comm comm);
int unpack_elements(const char* source, void* destination, std::uint64_t count, const datatype_layout& layout,
                    MPI_Comm comm);

inline char* offset(const void* buffer, std::int64_t bytes) {
  return static_cast<char*>(const_cast<void*>(buffer)) + bytes;
}

// A user buffer of consecutive elements, packed into a staging buffer if necessary.
class packed_buffer {
 public:
  // use_staging: use a staging buffer even if the datatype has no gaps.
  packed_buffer(const void* buffer, std::uint64_t count, const datatype_layout& layout, bool use_staging)
      : m_buffer(const_cast<void*>(buffer)), m_count(count), m_layout(layout) {
    if (use_staging || !layout.is_dense) m_staging = std::make_unique_for_overwrite<char[]>(bytes());
  }

  std::uint64_t bytes() const { return m_count * m_layout.bytes; }
  char* data() const { return m_staging ? m_staging.get() : static_cast<char*>(m_buffer); }
  // Call pack() before sending and unpack() after receiving. Both do nothing without a staging buffer.
  int pack(MPI_Comm comm) const {
    return m_staging ? pack_elements(m_buffer, m_count, m_layout, m_staging.get(), comm) : MPI_SUCCESS;
  }
  int unpack(MPI_Comm comm) const {
    return m_staging ? unpack_elements(m_staging.get(), m_buffer, m_count, m_layout, comm) : MPI_SUCCESS;
  }

 private:
  void* m_buffer;
  std::uint64_t m_count;
  const datatype_layout& m_layout;
  std::unique_ptr<char[]> m_staging;
};

// A user buffer with blocks of equal size, one for each of `ranks` ranks.
class packed_equal_blocks : public packed_buffer {
 public:
  packed_equal_blocks(const void* buffer, std::uint64_t count, int ranks, const datatype_layout& layout,
                      bool use_staging)
      : packed_buffer(buffer, count * static_cast<std::uint64_t>(ranks), layout, use_staging),
        m_buffer(buffer),
        m_ranks(ranks),
        m_block_bytes(count * layout.bytes),
        m_block_extent(static_cast<std::int64_t>(count) * layout.extent) {}

  // The interface of packed_blocks. The caller has checked the arguments.
  static bool is_valid() { return true; }
  static bool is_missing() { return false; }
  static void set_counts(isthmus_operation&, bool) {}
  int ranks() const { return m_ranks; }
  std::uint64_t total() const { return packed_buffer::bytes(); }
  std::uint64_t bytes(int) const { return m_block_bytes; }
  using packed_buffer::data;
  char* data(int rank) const { return data() + static_cast<std::uint64_t>(rank) * m_block_bytes; }
  const void* user_data(int rank) const { return offset(m_buffer, rank * m_block_extent); }

 private:
  const void* m_buffer;
  int m_ranks;
  std::uint64_t m_block_bytes;
  std::int64_t m_block_extent;
};

// A user buffer with one block per rank, each with its own count and displacement.
class packed_blocks {
 public:
  template <typename Count, typename Displacement>
  packed_blocks(const void* buffer, const Count* counts, const Displacement* displs, int ranks,
                const datatype_layout& layout, bool use_staging)
      : m_buffer(const_cast<void*>(buffer)), m_layout(layout), m_is_staged(use_staging || !layout.is_dense) {
    reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) add(counts[rank], displs[rank]);
    assign_offsets();
  }

  bool is_valid() const { return m_is_valid; }  // no negative counts
  bool is_missing() const { return m_buffer == nullptr && m_layout.is_dense && m_total > 0; }
  int ranks() const { return static_cast<int>(m_bytes.size()); }
  std::uint64_t total() const { return m_total; }  // bytes
  std::uint64_t bytes(int rank) const { return m_bytes[static_cast<std::size_t>(rank)]; }
  char* data() const { return m_staging ? m_staging.get() : m_base; }
  char* data(int rank) const { return data() + m_offsets[static_cast<std::size_t>(rank)]; }
  // Sets the counts and displacements of the send side or the receive side, in bytes.
  void set_counts(isthmus_operation& operation, bool is_send) const {
    (is_send ? operation.send_counts : operation.recv_counts) = m_bytes.data();
    (is_send ? operation.send_displs : operation.recv_displs) = m_offsets.data();
  }
  int pack(MPI_Comm comm) const;
  int unpack(MPI_Comm comm) const;
  // Packs the block of one rank into `destination`.
  int pack_block(int rank, char* destination, MPI_Comm comm) const;
  const void* user_data(int rank) const {
    return offset(m_buffer, m_displs[static_cast<std::size_t>(rank)] * m_layout.extent);
  }

 private:
  void reserve(std::size_t ranks);
  void add(std::int64_t count, std::int64_t displ);
  void assign_offsets();

  void* m_buffer;
  const datatype_layout& m_layout;
  bool m_is_staged, m_is_valid = true;
  // Avoids heap allocations for up to 32 ranks, because an allocation would cost more than a small call.
  alignas(std::uint64_t) std::array<std::byte, sizeof(std::uint64_t) * 3 * 32> m_inline_storage;
  std::pmr::monotonic_buffer_resource m_arena{m_inline_storage.data(), m_inline_storage.size()};
  std::pmr::vector<std::int64_t> m_displs{&m_arena};  // in elements, as passed by the caller
  std::pmr::vector<std::uint64_t> m_bytes{&m_arena}, m_offsets{&m_arena};
  std::uint64_t m_total = 0;
  char* m_base = nullptr;
  std::unique_ptr<char[]> m_staging;
};

}  // namespace isthmus::mpi_shim
