#include "operators/fused/model/schedule.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"

namespace isthmus::fused {
namespace {

constexpr std::uint64_t pieces_per_shard = 16;
constexpr std::uint64_t tile_rows = 128;  // cutting inside a tile of a matrix unit only wastes it
constexpr double least_gain = 0.98;       // a prediction is not exact enough to act on less

// A shard's rows cut into at most `most` pieces of a whole number of tiles.
std::vector<std::uint64_t> piece_rows(std::uint64_t rows, std::uint64_t most) {
  const std::uint64_t tiles = std::max<std::uint64_t>(1, (rows + tile_rows - 1) / tile_rows);
  const std::uint64_t count = std::min(most, tiles);
  std::vector<std::uint64_t> pieces;
  std::uint64_t begin = 0;
  for (std::uint64_t index = 1; index <= count; ++index) {
    const std::uint64_t end = std::min(rows, index == count ? rows : tiles * index / count * tile_rows);
    pieces.push_back(end - begin);
    begin = end;
  }
  return pieces;
}

// As the caller asked: equal to a row.
std::vector<std::uint64_t> equal_rows(std::uint64_t rows, std::uint64_t count) {
  std::vector<std::uint64_t> pieces;
  for (std::uint64_t index = 0; index < count; ++index)
    pieces.push_back(rows * (index + 1) / count - rows * index / count);
  return pieces;
}

// What both kinds know of the link.
class planner {
 public:
  planner(const problem& what, const costs& figures) : m_what(what), m_figures(figures) {}

  double sequential_us() const {
    const double link_us =
        m_figures.chunk_us + copy_us(m_what.shard_rows) * static_cast<double>(m_what.size - 1);
    return (m_figures.collective_us > 0 ? m_figures.collective_us : link_us) +
           m_figures.product_us(m_what.asked.m);
  }

 protected:
  double copy_us(std::uint64_t rows) const {
    return static_cast<double>(rows * m_what.moved_row_bytes()) / m_figures.bytes_per_us;
  }

  const problem& m_what;
  const costs& m_figures;
};

class gather_planner : public planner {
  using table = std::vector<std::vector<double>>;

 public:
  gather_planner(const problem& what, const costs& figures) : planner(what, figures) {
    for (int step = 1; step < what.size; ++step) m_sources.push_back((what.rank + step) % what.size);
  }

  std::vector<row_group> equal_groups(std::uint32_t chunks) const {
    std::vector<row_group> groups = {own()};
    for (const int source : m_sources) {
      std::uint64_t begin = 0;
      for (const std::uint64_t rows : equal_rows(m_what.shard_rows, chunks)) {
        groups.push_back({source, begin, rows, true});
        begin += rows;
      }
    }
    return groups;
  }

  // best[c][p] is the earliest end of c groups that hold everything up to piece p, and from[c][p] where the
  // last of them began. The number of groups counts because each delays all that follow on the link.
  std::vector<row_group> best_groups() const {
    const auto pieces = piece_rows(m_what.shard_rows, pieces_per_shard);
    const std::size_t count = pieces.size();
    std::vector<row_group> groups = {own()};
    double begin_us = m_figures.product_us(m_what.shard_rows), link_us = 0;
    for (const int source : m_sources) {
      table best(count + 1, std::vector<double>(count + 1, std::numeric_limits<double>::infinity()));
      std::vector<std::vector<std::size_t>> from(count + 1, std::vector<std::size_t>(count + 1, 0));
      best[0][0] = begin_us;
      for (std::size_t chunks = 1; chunks <= count; ++chunks)
        for (std::size_t end = chunks; end <= count; ++end) {
          const double arrived =
              link_us + static_cast<double>(chunks) * m_figures.chunk_us + copy_us(rows_before(pieces, end));
          std::uint64_t rows = 0;
          for (std::size_t begin = end; begin-- > 0;) {
            rows += pieces[begin];
            const double done = std::max(best[chunks - 1][begin], arrived) + m_figures.product_us(rows);
            if (done < best[chunks][end]) best[chunks][end] = done, from[chunks][end] = begin;
          }
        }
      std::size_t chosen = 1;
      for (std::size_t chunks = 2; chunks <= count; ++chunks)
        if (best[chunks][count] < best[chosen][count]) chosen = chunks;
      append(groups, source, pieces, from, chosen);
      begin_us = best[chosen][count];
      link_us += static_cast<double>(chosen) * m_figures.chunk_us + copy_us(m_what.shard_rows);
    }
    return groups;
  }

  // When the last product ends, chunks arriving one after the other.
  double end_us(const std::vector<row_group>& groups) const {
    double now = 0, link_us = 0;
    for (const row_group& each : groups) {
      if (each.arrives) {
        link_us += m_figures.chunk_us + copy_us(each.rows);
        now = m_figures.overlaps ? std::max(now, link_us) : now + copy_us(each.rows);
      }
      now += m_figures.product_us(each.rows);
    }
    return now + m_figures.fixed_us;
  }

 private:
  row_group own() const { return {m_what.rank, 0, m_what.shard_rows, false}; }
  static std::uint64_t rows_before(const std::vector<std::uint64_t>& pieces, std::size_t end) {
    std::uint64_t rows = 0;
    for (std::size_t index = 0; index < end; ++index) rows += pieces[index];
    return rows;
  }
  static void append(std::vector<row_group>& groups, int source, const std::vector<std::uint64_t>& pieces,
                     const std::vector<std::vector<std::size_t>>& from, std::size_t chunks) {
    std::vector<row_group> reversed;
    for (std::size_t end = pieces.size(); chunks > 0; end = from[chunks--][end]) {
      const std::uint64_t begin = rows_before(pieces, from[chunks][end]);
      reversed.push_back({source, begin, rows_before(pieces, end) - begin, true});
    }
    groups.insert(groups.end(), reversed.rbegin(), reversed.rend());
  }

  std::vector<int> m_sources;
};

class scatter_planner : public planner {
 public:
  using planner::planner;

  std::vector<std::uint64_t> pieces_of(std::uint32_t chunks) const {
    return m_what.asked.chunks > 0 ? equal_rows(m_what.shard_rows, chunks)
                                   : piece_rows(m_what.shard_rows, chunks);
  }

  std::vector<row_group> groups(std::uint32_t chunks) const {
    std::vector<row_group> made;
    for (int step = 1; step <= m_what.size; ++step) {
      std::uint64_t begin = 0;
      for (const std::uint64_t rows : pieces_of(chunks)) {
        made.push_back({(m_what.rank - step + m_what.size) % m_what.size, begin, rows, step > 1});
        begin += rows;
      }
    }
    return made;
  }

  std::uint32_t best_chunks() const {
    std::uint32_t best = 1;
    for (std::uint32_t chunks = 2; chunks <= pieces_per_shard; ++chunks)
      if (pieces_of(chunks).size() == chunks && end_us(chunks) < end_us(best)) best = chunks;
    return best;
  }

  // When the last product of a rank ends, all ranks being alike: what a rank has computed in one step is what
  // its neighbour waits for in the next.
  double end_us(std::uint32_t chunks) const {
    const auto pieces = pieces_of(chunks);
    std::vector<double> done(pieces.size(), 0);
    double now = 0, link = 0;
    for (int step = 0; step < m_what.size; ++step)
      for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
        if (step > 0 && m_figures.overlaps) {
          link = std::max(link, done[piece]) + m_figures.chunk_us + copy_us(pieces[piece]);
          now = std::max(now, link);
        } else if (step > 0) {
          now += copy_us(pieces[piece]);
        }
        now += m_figures.product_us(pieces[piece]);
        done[piece] = now;
      }
    return now + m_figures.fixed_us;
  }
};

void choose_mode(const problem& what, schedule& made) {
  switch (what.asked.mode) {
    case ISTHMUS_FUSED_SEQUENTIAL: made.reason = "sequential was asked for"; break;
    case ISTHMUS_FUSED_PIPELINED:
      made.pipelined = true;
      made.reason = "pipelined was asked for";
      break;
    case ISTHMUS_FUSED_BY_MODEL:
      made.pipelined = made.pipelined_us < least_gain * made.sequential_us;
      made.reason = fmt::format("the model predicts {:.0f} us pipelined, {:.0f} us sequential",
                                made.pipelined_us, made.sequential_us);
      break;
  }
}

}  // namespace

schedule make_schedule(const problem& what, const costs& figures) {
  schedule result;
  if (what.size == 1 || what.moved_bytes() == 0) {
    result.reason = what.size == 1   ? "one rank has everything: one product"
                    : what.gathers() ? "A is empty: nothing to gather"
                                     : "C is empty: nothing to sum";
    result.groups = {{what.rank, 0, what.asked.m, false}};
    return result;
  }
  const std::uint32_t chunks = what.asked.chunks;
  if (what.gathers()) {
    const gather_planner plans(what, figures);
    result.groups = chunks > 0 ? plans.equal_groups(chunks) : plans.best_groups();
    result.chunks =
        static_cast<std::uint32_t>((result.groups.size() - 1) / static_cast<std::size_t>(what.size - 1));
    result.pipelined_us = plans.end_us(result.groups);
    result.sequential_us = plans.sequential_us();
  } else {
    const scatter_planner plans(what, figures);
    result.chunks = chunks > 0 ? chunks : plans.best_chunks();
    result.groups = plans.groups(result.chunks);
    result.pipelined_us = plans.end_us(result.chunks);
    result.sequential_us = plans.sequential_us();
  }
  choose_mode(what, result);
  return result;
}

void agree_on_order(communicator& owner, const problem& what, schedule& wished) {
  struct wish {
    std::int32_t pipelined;
    std::uint32_t chunks;
  };
  const auto all = gather_values(owner.control(), wish{wished.pipelined, wished.chunks});
  if (!wished.pipelined) return;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].pipelined == 0) {
      wished.pipelined = false;
      wished.reason += fmt::format("; on rank {} it prefers sequential", rank);
      return;
    }
  if (what.gathers() || wished.chunks == all[0].chunks) return;
  wished.chunks = all[0].chunks;
  wished.groups = scatter_planner(what, {}).groups(wished.chunks);
}

schedule without_shared_memory(const problem& what, const schedule& wished, int nodes) {
  const std::string reason = fmt::format("the ranks are on {} machines, which share no memory", nodes);
  if (what.asked.mode == ISTHMUS_FUSED_PIPELINED)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     "fused_plan_create: pipelined was asked for, but " + reason,
                     "ISTHMUS_FUSED_BY_MODEL takes the sequential form there");
  schedule result = wished;
  result.pipelined = false;
  result.reason = reason;
  return result;
}

std::string name_of(const row_group& each) {
  return fmt::format("rank {} rows {}..{}", each.source, each.begin, each.begin + each.rows);
}

}  // namespace isthmus::fused
