#include "operators/tree_allreduce/tree_allreduce.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "base/elements.hpp"
#include "base/error.hpp"
#include "base/tables.hpp"
#include "core/group.hpp"
#include "kernels/kernels.hpp"

namespace isthmus {
namespace {

// From this size of a rank's partial sums on, each rank adds one slice of the result. This transfers less than gathering
// all partial sums.
constexpr std::uint64_t sliced_bytes = 64 << 10;
// Elements that are added at a time. All rows of a block fit into the L2 cache.
constexpr std::uint64_t block_elements = 1024;

// A node of the tree: the sum of the leaves [index << level, (index + 1) << level).
struct tree_node {
  int level;
  std::uint64_t index;
};

// Returns the nodes that remain if the leaves [first, first + count) are added.
std::vector<tree_node> find_partial_sums(std::uint64_t first, std::uint64_t count) {
  std::vector<tree_node> nodes;
  for (const std::uint64_t end = first + count; first < end;) {
    const int size_level = static_cast<int>(std::bit_width(end - first)) - 1;
    const int level = first == 0 ? size_level : std::min(size_level, std::countr_zero(first));
    nodes.push_back({level, first >> level});
    first += std::uint64_t{1} << level;
  }
  return nodes;
}

// Adds the values of nodes that arrive in the order of their leaves, for one block of elements.
class tree_adder {
 public:
  explicit tree_adder(isthmus_datatype sum_type)
      : m_add(cpu::kernels().reduce[sum_type][ISTHMUS_SUM]), m_row_bytes(block_elements * bytes_of(sum_type)) {}

  void begin_block(std::uint64_t length) {
    m_length = length;
    m_nodes.clear();
  }

  // Returns memory for the values of the next node. add() must follow.
  std::byte* next_row() {
    if (m_nodes.size() == m_rows.size()) m_rows.emplace_back(m_row_bytes);
    return m_rows[m_nodes.size()].data();
  }

  // Adds the node in next_row(). Siblings are added as soon as both are complete.
  void add(tree_node node) {
    while (!m_nodes.empty() && node.index % 2 == 1 && m_nodes.back().level == node.level) {
      m_nodes.pop_back();
      add_row_after(m_nodes.size());
      node = {node.level + 1, node.index / 2};
    }
    m_nodes.push_back(node);
  }

  // The values of the i-th node that lacks a sibling.
  const std::byte* row(std::size_t i) const { return m_rows[i].data(); }

  // Returns the sum of all leaves. Precondition: all of them have been added.
  const std::byte* root() {
    for (std::size_t i = m_nodes.size() - 1; i-- > 0;) add_row_after(i);
    return row(0);
  }

 private:
  void add_row_after(std::size_t i) {
    const void* const operands[] = {m_rows[i].data(), m_rows[i + 1].data()};
    m_add(m_rows[i].data(), operands, 2, m_length);
  }

  cpu::reduce_function m_add;
  std::size_t m_row_bytes;
  std::uint64_t m_length = 0;
  std::vector<tree_node> m_nodes;
  std::vector<std::vector<std::byte>> m_rows;
};

error invalid(const char* location, const std::string& message, const char* hint) {
  return invalid_argument(location, "tree_allreduce: " + message, hint);
}

void check_arguments(const communicator& ranks, const void* leaves, std::uint64_t leaf_count,
                     const void* recv_buf, std::uint64_t count, isthmus_datatype datatype) {
  group::reject_active("tree_allreduce");
  const isthmus_platform platform = ranks.ranks().device.platform;
  if (platform != ISTHMUS_PLATFORM_HOST)
    throw make_error(
        ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
        fmt::format("tree_allreduce: platform {} is not supported, only host", isthmus_platform_name(platform)),
        "use isthmus.torch.tree_all_reduce for tensors on devices");
  if (datatype < 0 || datatype >= ISTHMUS_DATATYPE_COUNT)
    throw out_of_range(ISTHMUS_HERE, "tree_allreduce: datatype", static_cast<int>(datatype),
                       ISTHMUS_DATATYPE_COUNT, "use an ISTHMUS_ datatype of types.h");
  if (!is_floating(datatype))
    throw invalid(ISTHMUS_HERE,
                  fmt::format("datatype = {} must be a floating-point type", isthmus_datatype_name(datatype)),
                  "use isthmus_allreduce: sums of integers do not depend on the number of ranks");
  if (leaf_count == 0)
    throw invalid(ISTHMUS_HERE, "leaf_count = 0 must be at least 1", "pass at least one leaf on every rank");
  const auto size = static_cast<std::uint64_t>(ranks.ranks().size);
  const auto elements = checked_product(leaf_count, std::max<std::uint64_t>(count, size));
  const auto bytes = elements ? checked_product(*elements, bytes_of(datatype)) : elements;
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw invalid(
        ISTHMUS_HERE,
        fmt::format("leaf_count = {} leaves of count = {} elements of {} do not fit the address space",
                    leaf_count, count, isthmus_datatype_name(datatype)),
        "check for a negative value that became unsigned");
  if (count == 0) return;
  require_not_null(ISTHMUS_HERE, "tree_allreduce", "leaves", leaves, "pass a buffer, or a count of 0");
  require_not_null(ISTHMUS_HERE, "tree_allreduce", "recv_buf", recv_buf, "pass a buffer, or a count of 0");
  const auto first = reinterpret_cast<std::uintptr_t>(leaves),
             result = reinterpret_cast<std::uintptr_t>(recv_buf);
  if (first < result + count * bytes_of(datatype) && result < first + leaf_count * count * bytes_of(datatype))
    throw invalid(ISTHMUS_HERE, fmt::format("leaves [{}] and recv_buf [{}] overlap", leaves, recv_buf),
                  "pass a separate buffer for the result");
}

// One call. All arguments of this rank are valid.
class tree_call {
 public:
  tree_call(communicator& ranks, const void* leaves, std::uint64_t leaf_count, void* recv_buf,
            std::uint64_t count, isthmus_datatype datatype)
      : m_ranks(ranks),
        m_size(static_cast<std::uint64_t>(ranks.ranks().size)),
        m_rank(static_cast<std::uint64_t>(ranks.ranks().rank)),
        m_leaves(static_cast<const std::byte*>(leaves)),
        m_leaf_count(leaf_count),
        m_recv(static_cast<std::byte*>(recv_buf)),
        m_count(count),
        m_type(datatype),
        m_sum_type(accumulation_type(datatype, ISTHMUS_SUM)),
        m_adder(m_sum_type) {}

  void run_alone() {
    for_each_block(0, m_count, [&](std::uint64_t begin, std::uint64_t length) {
      add_own_leaves(begin, length);
      store_root(m_recv + begin * bytes_of(m_type), length);
    });
  }

  void run() {
    try {
      exchange_partial_sums();
    } catch (const std::bad_alloc&) {  // the other ranks wait for this rank
      failure_info failure = make_error(ISTHMUS_ERROR_OUT_OF_MEMORY, ISTHMUS_HERE,
                                        "tree_allreduce: no host memory for the sums of all ranks",
                                        "pass fewer elements in one call")
                                 .info();
      failure.rank = m_ranks.ranks().rank;
      m_ranks.abort(failure);
      throw error(failure);
    }
  }

 private:
  // A difference would give wrong sums, because the transfers contain only sums.
  // Errors: throws error (MISMATCH) on all ranks.
  void compare_arguments() {
    struct arguments {
      std::uint64_t leaf_count, count, datatype;
      bool operator==(const arguments&) const = default;
    };
    const arguments own{m_leaf_count, m_count, static_cast<std::uint64_t>(m_type)};
    std::vector<arguments> all(m_size);
    exchange(ISTHMUS_ALLGATHER, &own, all.data(), sizeof own, ISTHMUS_UINT8);
    const auto other = std::ranges::find_if_not(all, [&](const arguments& each) { return each == all[0]; });
    if (other == all.end()) return;
    const auto describe = [](const arguments& each) {
      return fmt::format("leaf_count = {} and count = {} of {}", each.leaf_count, each.count,
                         isthmus_datatype_name(static_cast<isthmus_datatype>(each.datatype)));
    };
    throw make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                     fmt::format("tree_allreduce: rank {} passed {}, but rank 0 passed {}", other - all.begin(),
                                 describe(*other), describe(all[0])),
                     "pass the same leaf_count, count and datatype on all ranks");
  }

  // Every rank computes the whole result, or one slice of it.
  void exchange_partial_sums() {
    compare_arguments();
    if (m_count == 0) return;
    // Ranks can have different numbers of partial sums, for example with three leaves each.
    for (std::uint64_t rank = 0; rank < m_size; ++rank) {
      m_nodes.push_back(find_partial_sums(rank * m_leaf_count, m_leaf_count));
      m_rows = std::max<std::uint64_t>(m_rows, m_nodes.back().size());
    }
    m_slices = m_rows * m_count * bytes_of(m_sum_type) < sliced_bytes ? 1 : m_size;
    m_slice = (m_count + m_slices - 1) / m_slices;
    const std::vector<std::byte> partials = add_all_own_leaves();
    std::vector<std::byte> received(m_size * m_rows * m_slice * bytes_of(m_sum_type));
    exchange(m_slices == 1 ? ISTHMUS_ALLGATHER : ISTHMUS_ALLTOALL, partials.data(), received.data(),
             m_rows * m_slice, m_sum_type);
    if (m_slices == 1) return combine(received.data(), m_recv, m_count);
    std::vector<std::byte> own_slice(m_slice * bytes_of(m_type));
    combine(received.data(), own_slice.data(), slice_begin(m_rank + 1) - slice_begin(m_rank));
    gather_slices(own_slice.data());
  }

  std::uint64_t slice_begin(std::uint64_t i) const { return std::min(m_count, i * m_slice); }

  // Calls visit(begin, length) for the blocks of the elements [begin, end).
  template <typename Visit>
  static void for_each_block(std::uint64_t begin, std::uint64_t end, Visit&& visit) {
    for (; begin < end; begin += block_elements) visit(begin, std::min(block_elements, end - begin));
  }

  void add_own_leaves(std::uint64_t begin, std::uint64_t length) {
    m_adder.begin_block(length);
    for (std::uint64_t leaf = 0; leaf < m_leaf_count; ++leaf) {
      const std::byte* from = m_leaves + (leaf * m_count + begin) * bytes_of(m_type);
      if (m_type == m_sum_type)
        std::memcpy(m_adder.next_row(), from, length * bytes_of(m_type));
      else
        widen(from, m_type, m_adder.next_row(), length);
      m_adder.add({0, m_rank * m_leaf_count + leaf});
    }
  }

  void store_root(std::byte* to, std::uint64_t length) {
    if (m_type == m_sum_type)
      std::memcpy(to, m_adder.root(), length * bytes_of(m_type));
    else
      narrow(m_adder.root(), m_type, to, length);
  }

  // Returns this rank's partial sums as [slice][row][element].
  std::vector<std::byte> add_all_own_leaves() {
    const std::uint64_t element_bytes = bytes_of(m_sum_type);
    std::vector<std::byte> partials(m_slices * m_rows * m_slice * element_bytes);
    for (std::uint64_t i = 0; i < m_slices; ++i)
      for_each_block(slice_begin(i), slice_begin(i + 1), [&](std::uint64_t begin, std::uint64_t length) {
        add_own_leaves(begin, length);
        for (std::size_t row = 0; row < m_nodes[m_rank].size(); ++row)
          std::memcpy(partials.data() + ((i * m_rows + row) * m_slice + begin - slice_begin(i)) * element_bytes,
                      m_adder.row(row), length * element_bytes);
      });
    return partials;
  }

  // Adds the partial sums of all ranks, which are in `received` as [rank][row][element].
  void combine(const std::byte* received, std::byte* out, std::uint64_t count) {
    const std::uint64_t element_bytes = bytes_of(m_sum_type);
    for_each_block(0, count, [&](std::uint64_t begin, std::uint64_t length) {
      m_adder.begin_block(length);
      for (std::uint64_t rank = 0; rank < m_size; ++rank)
        for (std::size_t row = 0; row < m_nodes[rank].size(); ++row) {
          std::memcpy(m_adder.next_row(), received + ((rank * m_rows + row) * m_slice + begin) * element_bytes,
                      length * element_bytes);
          m_adder.add(m_nodes[rank][row]);
        }
      store_root(out + begin * bytes_of(m_type), length);
    });
  }

  void gather_slices(const std::byte* own_slice) {
    if (m_slice * m_size == m_count) return exchange(ISTHMUS_ALLGATHER, own_slice, m_recv, m_slice, m_type);
    std::vector<std::byte> padded(m_slice * m_size * bytes_of(m_type));
    exchange(ISTHMUS_ALLGATHER, own_slice, padded.data(), m_slice, m_type);
    std::memcpy(m_recv, padded.data(), m_count * bytes_of(m_type));
  }

  void exchange(isthmus_collective collective, const void* send, void* recv, std::uint64_t count,
                isthmus_datatype datatype) {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = datatype;
    operation.count = count;
    operation.send_buf = send;
    operation.recv_buf = recv;
    m_ranks.enqueue(operation);
  }

  communicator& m_ranks;
  std::uint64_t m_size, m_rank;
  const std::byte* m_leaves;
  std::uint64_t m_leaf_count;
  std::byte* m_recv;
  std::uint64_t m_count;
  isthmus_datatype m_type, m_sum_type;
  tree_adder m_adder;
  std::vector<std::vector<tree_node>> m_nodes;  // partial sums of each rank
  std::uint64_t m_rows = 0;                     // largest number of partial sums of a rank
  std::uint64_t m_slices = 1, m_slice = 0;      // number of slices, and elements of one
};

}  // namespace

void tree_allreduce(communicator& ranks, const void* leaves, std::uint64_t leaf_count, void* recv_buf,
                    std::uint64_t count, isthmus_datatype datatype) {
  ranks.check_alive();
  check_arguments(ranks, leaves, leaf_count, recv_buf, count, datatype);
  tree_call call(ranks, leaves, leaf_count, recv_buf, count, datatype);
  if (ranks.ranks().size == 1)
    call.run_alone();
  else
    call.run();
}

}  // namespace isthmus
