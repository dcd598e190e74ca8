#include "frontends/mpi/blocks.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace isthmus::mpi_shim {
namespace {

#if MPI_VERSION >= 4
MPI_Count packed_bytes(std::uint64_t count, const element& what) {
  const std::uint64_t bytes = count * what.bytes;
  return static_cast<MPI_Count>(bytes);
}
int pack_some(const void* from, std::uint64_t count, const element& what, char* to, MPI_Comm comm) {
  MPI_Count position = 0;
  return PMPI_Pack_c(from, static_cast<MPI_Count>(count), what.type, to, packed_bytes(count, what), &position,
                     comm);
}
int unpack_some(const char* from, void* to, std::uint64_t count, const element& what, MPI_Comm comm) {
  MPI_Count position = 0;
  return PMPI_Unpack_c(from, packed_bytes(count, what), &position, to, static_cast<MPI_Count>(count), what.type,
                       comm);
}
std::uint64_t elements_at_once(const element&) { return std::numeric_limits<std::int64_t>::max(); }
#else
// MPI 3 counts packed bytes in an int. One element that is larger than that is beyond it.
int pack_some(const void* from, std::uint64_t count, const element& what, char* to, MPI_Comm comm) {
  int position = 0;
  return PMPI_Pack(from, static_cast<int>(count), what.type, to, static_cast<int>(count * what.bytes),
                   &position, comm);
}
int unpack_some(const char* from, void* to, std::uint64_t count, const element& what, MPI_Comm comm) {
  int position = 0;
  return PMPI_Unpack(from, static_cast<int>(count * what.bytes), &position, to, static_cast<int>(count),
                     what.type, comm);
}
std::uint64_t elements_at_once(const element& what) {
  constexpr std::uint64_t most = std::numeric_limits<int>::max();
  return std::max<std::uint64_t>(1, most / std::max<std::uint64_t>(1, what.bytes));
}
#endif

}  // namespace

int pack(const void* from, std::uint64_t count, const element& what, char* to, MPI_Comm comm) {
  if (what.is_dense) {
    if (count > 0) std::memcpy(to, from, count * what.bytes);
    return MPI_SUCCESS;
  }
  const std::uint64_t at_once = elements_at_once(what);
  for (std::uint64_t first = 0; first < count; first += at_once) {
    const std::uint64_t n = std::min(at_once, count - first);
    const int code = pack_some(offset(from, static_cast<std::int64_t>(first) * what.extent), n, what,
                               to + first * what.bytes, comm);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

int unpack(const char* from, void* to, std::uint64_t count, const element& what, MPI_Comm comm) {
  if (what.is_dense) {
    if (count > 0) std::memcpy(to, from, count * what.bytes);
    return MPI_SUCCESS;
  }
  const std::uint64_t at_once = elements_at_once(what);
  for (std::uint64_t first = 0; first < count; first += at_once) {
    const std::uint64_t n = std::min(at_once, count - first);
    const int code = unpack_some(from + first * what.bytes,
                                 offset(to, static_cast<std::int64_t>(first) * what.extent), n, what, comm);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

void blocks::reserve(std::size_t ranks) {
  m_displs.reserve(ranks);
  m_bytes.reserve(ranks);
  m_places.reserve(ranks);
}

void blocks::add(std::int64_t count, std::int64_t displ) {
  m_is_valid = m_is_valid && count >= 0;
  const std::uint64_t bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, count)) * m_what.bytes;
  m_bytes.push_back(bytes);
  m_displs.push_back(bytes == 0 ? 0 : displ);  // what stands beside a count of 0 means nothing
  m_total += bytes;
}

// In memory of our own blocks follow each other. In the caller's they count from the lowest one: MPI allows
// places before the buffer's address.
void blocks::place() {
  m_places.resize(m_bytes.size());
  if (m_is_staged) {
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < m_bytes.size(); ++i) {
      m_places[i] = at;
      at += m_bytes[i];
    }
    m_own = std::make_unique_for_overwrite<char[]>(std::max<std::uint64_t>(1, m_total));
    return;
  }
  std::int64_t lowest = 0;
  for (const std::int64_t displ : m_displs) lowest = std::min(lowest, displ);
  m_base = offset(m_buffer, lowest * m_what.extent);
  for (std::size_t i = 0; i < m_bytes.size(); ++i)
    m_places[i] = m_bytes[i] == 0 ? 0 : static_cast<std::uint64_t>((m_displs[i] - lowest) * m_what.extent);
}

int blocks::fill_one(int rank, char* to, MPI_Comm comm) const {
  return pack(begin(rank), bytes(rank) / std::max<std::uint64_t>(1, m_what.bytes), m_what, to, comm);
}

int blocks::fill(MPI_Comm comm) const {
  for (std::size_t i = 0; m_own && i < m_bytes.size(); ++i)
    if (m_bytes[i] > 0)
      if (const int code = fill_one(static_cast<int>(i), m_own.get() + m_places[i], comm); code != MPI_SUCCESS)
        return code;
  return MPI_SUCCESS;
}

int blocks::empty(MPI_Comm comm) const {
  for (std::size_t i = 0; m_own && i < m_bytes.size(); ++i) {
    if (m_bytes[i] == 0) continue;
    const int code = unpack(m_own.get() + m_places[i], const_cast<void*>(begin(static_cast<int>(i))),
                            m_bytes[i] / m_what.bytes, m_what, comm);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

}  // namespace isthmus::mpi_shim
