#include "frontends/mpi/blocks.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "frontends/mpi/native.hpp"

namespace isthmus::mpi_shim {
namespace {

// Counts of elements and packed bytes are limited by MPI's type for them. With int counts, a single element of 2 GiB or
// more cannot be packed.
using count_type = native_counts::count;

int pack_chunk(const void* source, std::uint64_t count, const datatype_layout& layout, char* destination,
               MPI_Comm comm) {
  count_type position = 0;
  const std::uint64_t bytes = count * layout.bytes;
  return native_counts::pack(source, static_cast<count_type>(count), layout.type, destination,
                             static_cast<count_type>(bytes), &position, comm);
}
int unpack_chunk(const char* source, void* destination, std::uint64_t count, const datatype_layout& layout,
                 MPI_Comm comm) {
  count_type position = 0;
  const std::uint64_t bytes = count * layout.bytes;
  return native_counts::unpack(source, static_cast<count_type>(bytes), &position, destination,
                               static_cast<count_type>(count), layout.type, comm);
}
std::uint64_t max_elements_per_call(const datatype_layout& layout) {
  constexpr auto max_count = static_cast<std::uint64_t>(std::numeric_limits<count_type>::max());
  return std::max<std::uint64_t>(1, max_count / std::max<std::uint64_t>(1, layout.bytes));
}

}  // namespace

int pack_elements(const void* source, std::uint64_t count, const datatype_layout& layout, char* destination,
                  MPI_Comm comm) {
  if (layout.is_dense) {
    if (count > 0) std::memcpy(destination, source, count * layout.bytes);
    return MPI_SUCCESS;
  }
  const std::uint64_t max_elements = max_elements_per_call(layout);
  for (std::uint64_t first = 0; first < count; first += max_elements) {
    const std::uint64_t n = std::min(max_elements, count - first);
    const int code = pack_chunk(offset(source, static_cast<std::int64_t>(first) * layout.extent), n, layout,
                                destination + first * layout.bytes, comm);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

int unpack_elements(const char* source, void* destination, std::uint64_t count, const datatype_layout& layout,
                    MPI_Comm comm) {
  if (layout.is_dense) {
    if (count > 0) std::memcpy(destination, source, count * layout.bytes);
    return MPI_SUCCESS;
  }
  const std::uint64_t max_elements = max_elements_per_call(layout);
  for (std::uint64_t first = 0; first < count; first += max_elements) {
    const std::uint64_t n = std::min(max_elements, count - first);
    const int code =
        unpack_chunk(source + first * layout.bytes,
                     offset(destination, static_cast<std::int64_t>(first) * layout.extent), n, layout, comm);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

void packed_blocks::reserve(std::size_t ranks) {
  m_displs.reserve(ranks);
  m_bytes.reserve(ranks);
  m_offsets.reserve(ranks);
}

void packed_blocks::add(std::int64_t count, std::int64_t displ) {
  m_is_valid = m_is_valid && count >= 0;
  const std::uint64_t bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, count)) * m_layout.bytes;
  m_bytes.push_back(bytes);
  m_displs.push_back(bytes == 0 ? 0 : displ);  // displacements of empty blocks are ignored
  m_total += bytes;
}

// Staged blocks are contiguous. Otherwise, offsets are relative to the lowest block, because MPI
// allows negative displacements.
void packed_blocks::assign_offsets() {
  m_offsets.resize(m_bytes.size());
  if (m_is_staged) {
    std::uint64_t position = 0;
    for (std::size_t i = 0; i < m_bytes.size(); ++i) {
      m_offsets[i] = position;
      position += m_bytes[i];
    }
    m_staging = std::make_unique_for_overwrite<char[]>(std::max<std::uint64_t>(1, m_total));
    return;
  }
  std::int64_t min_displ = 0;
  for (const std::int64_t displ : m_displs) min_displ = std::min(min_displ, displ);
  m_base = offset(m_buffer, min_displ * m_layout.extent);
  for (std::size_t i = 0; i < m_bytes.size(); ++i)
    m_offsets[i] =
        m_bytes[i] == 0 ? 0 : static_cast<std::uint64_t>((m_displs[i] - min_displ) * m_layout.extent);
}

int packed_blocks::pack_block(int rank, char* destination, MPI_Comm comm) const {
  return pack_elements(user_data(rank), bytes(rank) / std::max<std::uint64_t>(1, m_layout.bytes), m_layout,
                       destination, comm);
}

int packed_blocks::pack(MPI_Comm comm) const {
  for (std::size_t i = 0; m_staging && i < m_bytes.size(); ++i)
    if (m_bytes[i] > 0)
      if (const int code = pack_block(static_cast<int>(i), m_staging.get() + m_offsets[i], comm);
          code != MPI_SUCCESS)
        return code;
  return MPI_SUCCESS;
}

int packed_blocks::unpack(MPI_Comm comm) const {
  for (std::size_t i = 0; m_staging && i < m_bytes.size(); ++i) {
    if (m_bytes[i] == 0) continue;
    const int code =
        unpack_elements(m_staging.get() + m_offsets[i], const_cast<void*>(user_data(static_cast<int>(i))),
                        m_bytes[i] / m_layout.bytes, m_layout, comm);
    if (code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

}  // namespace isthmus::mpi_shim
