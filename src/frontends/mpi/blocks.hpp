// The buffers of calls that move data, as Isthmus can take them: bytes that follow each other. Datatypes may
// differ between ranks as long as their signatures match, so no rank may leave a call to MPI because of its own
// datatype: what has gaps is packed.
#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <vector>

#include "frontends/mpi/types.hpp"

namespace isthmus::mpi_shim {

// Copies elements out of a buffer, or into it, in the order of the datatype. MPI's code; it has gone to the
// communicator's error handler.
int pack(const void* from, std::uint64_t count, const element& what, char* to, MPI_Comm comm);
int unpack(const char* from, void* to, std::uint64_t count, const element& what, MPI_Comm comm);

inline char* offset(const void* buffer, std::int64_t bytes) {
  return static_cast<char*>(const_cast<void*>(buffer)) + bytes;
}

// A buffer of elements that follow each other.
class block {
 public:
  // `staged`: through memory of our own, even without gaps.
  block(const void* buffer, std::uint64_t count, const element& what, bool staged)
      : m_buffer(const_cast<void*>(buffer)), m_count(count), m_what(what) {
    if (staged || !what.is_dense) m_own = std::make_unique_for_overwrite<char[]>(bytes());
  }

  std::uint64_t bytes() const { return m_count * m_what.bytes; }
  char* data() const { return m_own ? m_own.get() : static_cast<char*>(m_buffer); }
  // Before it is sent, and after it has been received.
  int fill(MPI_Comm comm) const {
    return m_own ? pack(m_buffer, m_count, m_what, m_own.get(), comm) : MPI_SUCCESS;
  }
  int empty(MPI_Comm comm) const {
    return m_own ? unpack(m_own.get(), m_buffer, m_count, m_what, comm) : MPI_SUCCESS;
  }

 private:
  void* m_buffer;
  std::uint64_t m_count;
  const element& m_what;
  std::unique_ptr<char[]> m_own;
};

// A buffer with a block for each rank, each with a count and a place of its own.
class blocks {
 public:
  template <typename Count, typename Displacement>
  blocks(const void* buffer, const Count* counts, const Displacement* displs, int ranks, const element& what,
         bool staged)
      : m_buffer(const_cast<void*>(buffer)), m_what(what), m_is_staged(staged || !what.is_dense) {
    reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) add(counts[rank], displs[rank]);
    place();
  }

  bool is_valid() const { return m_is_valid; }  // no count is negative
  bool is_missing() const { return m_buffer == nullptr && m_what.is_dense && m_total > 0; }
  std::uint64_t total() const { return m_total; }  // bytes
  std::uint64_t bytes(int rank) const { return m_bytes[static_cast<std::size_t>(rank)]; }
  char* data() const { return m_own ? m_own.get() : m_base; }
  char* data(int rank) const { return data() + m_places[static_cast<std::size_t>(rank)]; }
  const std::uint64_t* counts() const { return m_bytes.data(); }
  const std::uint64_t* displs() const { return m_places.data(); }
  int fill(MPI_Comm comm) const;
  int empty(MPI_Comm comm) const;
  // Of one rank alone, into or out of memory of the caller's.
  int fill_one(int rank, char* to, MPI_Comm comm) const;
  const void* begin(int rank) const {
    return offset(m_buffer, m_displs[static_cast<std::size_t>(rank)] * m_what.extent);
  }

 private:
  void reserve(std::size_t ranks);
  void add(std::int64_t count, std::int64_t displ);
  void place();

  void* m_buffer;
  const element& m_what;
  bool m_is_staged, m_is_valid = true;
  // A small call costs less than its allocations would: those of up to 32 ranks lie here.
  alignas(std::uint64_t) std::array<std::byte, sizeof(std::uint64_t) * 3 * 32> m_room;
  std::pmr::monotonic_buffer_resource m_memory{m_room.data(), m_room.size()};
  std::pmr::vector<std::int64_t> m_displs{&m_memory};  // elements, as the caller has them
  std::pmr::vector<std::uint64_t> m_bytes{&m_memory}, m_places{&m_memory};
  std::uint64_t m_total = 0;
  char* m_base = nullptr;
  std::unique_ptr<char[]> m_own;
};

}  // namespace isthmus::mpi_shim
