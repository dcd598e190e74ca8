// Valid operations for every row of the collective table. They are built independently of
// the library's table code.
#pragma once

#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace test {

struct row {
  std::string_view name;
  isthmus_collective collective;
  std::string_view peer;
  bool reduces;
  std::string_view send_ranks, send_extent, recv_ranks, recv_extent, in_place;

  bool sends(bool is_root) const { return send_ranks == "ALL" || (send_ranks == "ROOT" && is_root); }
  bool receives(bool is_root) const { return recv_ranks == "ALL" || (recv_ranks == "ROOT" && is_root); }
};

inline const std::vector<row>& rows() {
  static const std::vector<row> all{
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {#name, ISTHMUS_##NAME, #peer, reduces == 1, #send_ranks, #send_extent, #recv_ranks, #recv_extent, #in_place},
#include <isthmus/collectives.def>
  };
  return all;
}

// An operation of one rank, with its buffers. Blocks have `count` elements. With COUNTS, block r has count + r
// elements and a gap before it.
class test_call {
 public:
  static constexpr std::uint64_t count = 5;
  static constexpr std::byte poison{0xa5};

  test_call(const row& table_row, int rank, int size, int root)
      : m_row(table_row), m_rank(rank), m_counts(static_cast<std::size_t>(size)), m_displs(m_counts.size()) {
    std::uint64_t next = 1;
    for (std::size_t r = 0; r < m_counts.size(); ++r) {
      m_counts[r] = count + r;
      m_displs[r] = next;
      next += m_counts[r] + 2;
    }
    m_send.assign(extent() * sizeof(float), poison);
    m_recv = m_send;
    operation.collective = table_row.collective;
    operation.datatype = ISTHMUS_FLOAT32;
    operation.op = ISTHMUS_SUM;
    operation.root = root;
    operation.count = is_irregular() ? m_counts[static_cast<std::size_t>(rank)] : count;
    if (table_row.collective == ISTHMUS_ALLTOALLV) operation.count = 0;
    if (sends()) operation.send_buf = m_send.data();
    if (receives()) operation.recv_buf = m_recv.data();
    if (sends() && table_row.send_extent == "COUNTS") set(operation.send_counts, operation.send_displs);
    if (receives() && table_row.recv_extent == "COUNTS") set(operation.recv_counts, operation.recv_displs);
  }

  bool is_root() const { return operation.root == m_rank; }
  bool sends() const { return m_row.sends(is_root()); }
  bool receives() const { return m_row.receives(is_root()); }
  bool is_irregular() const { return m_row.send_extent == "COUNTS" || m_row.recv_extent == "COUNTS"; }

  // Elements from the start of the buffer to the end of its last block.
  std::uint64_t extent() const { return m_displs.back() + m_counts.back() + 8; }
  std::vector<std::uint64_t>& counts() { return m_counts; }
  std::vector<std::uint64_t>& displs() { return m_displs; }

  // Makes the operation in place, in the form that the table defines for the collective.
  void make_in_place() {
    const auto own = is_irregular() ? m_displs[static_cast<std::size_t>(m_rank)]
                                    : count * static_cast<std::uint64_t>(m_rank);
    if (m_row.in_place == "SAME") operation.send_buf = operation.recv_buf;
    if (m_row.in_place == "RECV_BLOCK") operation.send_buf = m_recv.data() + own * sizeof(float);
    if (m_row.in_place == "SEND_BLOCK") operation.recv_buf = m_send.data() + own * sizeof(float);
  }

  bool is_untouched() const {
    const auto is_clean = [](const std::vector<std::byte>& bytes) {
      return std::all_of(bytes.begin(), bytes.end(), [](std::byte value) { return value == poison; });
    };
    return is_clean(m_send) && is_clean(m_recv);
  }

  isthmus_operation operation{};

 private:
  void set(const std::uint64_t*& counts_of, const std::uint64_t*& displs_of) {
    counts_of = m_counts.data();
    displs_of = m_displs.data();
  }

  const row& m_row;
  int m_rank;
  std::vector<std::uint64_t> m_counts, m_displs;
  std::vector<std::byte> m_send, m_recv;
};

}  // namespace test
