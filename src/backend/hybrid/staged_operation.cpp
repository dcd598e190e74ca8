#include "staged_operation.hpp"

#include <algorithm>

#include "../xccl/native_map.hpp"

namespace isthmus::hybrid {
namespace {

enum class place { nowhere, root, all };
enum class extent { nothing, count, count_x_size, counts };
// THE TABLE's own words. NOLINTBEGIN(readability-identifier-naming)
constexpr place NOWHERE = place::nowhere, ROOT = place::root, ALL = place::all;
constexpr extent NOTHING = extent::nothing, COUNT = extent::count, COUNT_X_SIZE = extent::count_x_size,
                 COUNTS = extent::counts;
// NOLINTEND(readability-identifier-naming)

struct row {
  place send_at;
  extent send_extent;
  place recv_at;
  extent recv_extent;
};

constexpr row rows[] = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_at, send_extent, recv_at, recv_extent, in_place) \
  {send_at, send_extent, recv_at, recv_extent},
#include <isthmus/collectives.def>
};

std::vector<block> blocks_of(extent kind, std::uint64_t count, const std::uint64_t* counts,
                             const std::uint64_t* displs, int size, std::uint64_t element) {
  switch (kind) {
    case extent::nothing: return {};
    case extent::count: return {{0, count * element}};
    case extent::count_x_size: return {{0, count * element * static_cast<std::uint64_t>(size)}};
    case extent::counts: break;
  }
  std::vector<block> blocks;
  for (int peer = 0; peer < size; ++peer)
    if (counts[peer] != 0) blocks.push_back({displs[peer] * element, counts[peer] * element});
  return blocks;
}

std::uint64_t end_of(const std::vector<block>& blocks) {
  std::uint64_t end = 0;
  for (const block& each : blocks) end = std::max(end, each.bytes == 0 ? 0 : each.at + each.bytes);
  return end;
}

}  // namespace

staged_shape shape_of(const isthmus_operation& operation, int rank, int size) {
  const row& what = rows[operation.collective];
  const bool root = rank == operation.root;
  const std::uint64_t element = xccl::datatype_bytes(operation.datatype);
  staged_shape shape;
  if (what.send_at == place::all || (what.send_at == place::root && root))
    shape.send_bytes = end_of(blocks_of(what.send_extent, operation.count, operation.send_counts,
                                        operation.send_displs, size, element));
  if (what.recv_at == place::all || (what.recv_at == place::root && root))
    shape.recv_blocks = blocks_of(what.recv_extent, operation.count, operation.recv_counts,
                                  operation.recv_displs, size, element);
  shape.recv_bytes = end_of(shape.recv_blocks);
  shape.elementwise = operation.collective == ISTHMUS_ALLREDUCE || operation.collective == ISTHMUS_REDUCE ||
                      operation.collective == ISTHMUS_BROADCAST;
  return shape;
}

}  // namespace isthmus::hybrid
