#include "fused/schedule.hpp"

#include <algorithm>
#include <limits>

#include "runtime/error.hpp"
#include "runtime/exchange.hpp"

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

class planner {
 public:
  planner(const problem& what, const costs& figures) : m_what(what), m_figures(figures) {
    for (int step = 1; step < what.size; ++step) m_sources.push_back((what.rank + step) % what.size);
  }

  // Equal parts, as the caller asked.
  std::vector<row_group> equal_groups(std::uint32_t chunks) const {
    std::vector<row_group> groups = {own()};
    for (const int source : m_sources)
      for (std::uint64_t index = 0; index < chunks; ++index) {
        const std::uint64_t begin = m_what.shard_rows * index / chunks;
        groups.push_back({source, begin, m_what.shard_rows * (index + 1) / chunks - begin});
      }
    return groups;
  }

  // best[p] is the earliest end of everything up to piece p, and from[p] where its last group began.
  std::vector<row_group> best_groups() const {
    const auto pieces = piece_rows(m_what.shard_rows, pieces_per_shard);
    const std::size_t count = pieces.size();
    std::vector<row_group> groups = {own()};
    double begin_us = m_figures.product_us(m_what.shard_rows);
    std::uint64_t earlier_rows = 0;
    for (const int source : m_sources) {
      std::vector<double> best(count + 1, std::numeric_limits<double>::infinity());
      std::vector<std::size_t> from(count + 1, 0);
      best[0] = begin_us;
      for (std::size_t end = 1; end <= count; ++end) {
        std::uint64_t rows = 0;
        for (std::size_t begin = end; begin-- > 0;) {
          rows += pieces[begin];
          const double arrived = arrival_us(earlier_rows + rows_before(pieces, end));
          const double done = std::max(best[begin], arrived) + m_figures.product_us(rows);
          if (done < best[end]) best[end] = done, from[end] = begin;
        }
      }
      append(groups, source, pieces, from);
      begin_us = best[count];
      earlier_rows += m_what.shard_rows;
    }
    return groups;
  }

  // When the last product ends, chunks arriving one after the other.
  double end_us(const std::vector<row_group>& groups) const {
    double now = 0, copied = 0;
    for (const row_group& each : groups) {
      if (each.source != m_what.rank) {
        copied += static_cast<double>(each.rows * row_bytes()) / m_figures.bytes_per_us;
        const double arrived = copied + m_figures.chunk_us;
        now = m_figures.overlaps ? std::max(now, arrived)
                                 : now + static_cast<double>(each.rows * row_bytes()) / m_figures.bytes_per_us;
      }
      now += m_figures.product_us(each.rows);
    }
    return now + m_figures.fixed_us;
  }

  double sequential_us() const {
    const auto remote = static_cast<double>(m_what.shard_bytes()) * static_cast<double>(m_what.size - 1);
    return remote / m_figures.bytes_per_us + m_figures.chunk_us + m_figures.product_us(m_what.asked.m);
  }

 private:
  row_group own() const { return {m_what.rank, 0, m_what.shard_rows}; }
  std::uint64_t row_bytes() const { return m_what.asked.k * m_what.input_bytes(); }
  double arrival_us(std::uint64_t rows) const {
    return m_figures.chunk_us + static_cast<double>(rows * row_bytes()) / m_figures.bytes_per_us;
  }
  static std::uint64_t rows_before(const std::vector<std::uint64_t>& pieces, std::size_t end) {
    std::uint64_t rows = 0;
    for (std::size_t index = 0; index < end; ++index) rows += pieces[index];
    return rows;
  }
  static void append(std::vector<row_group>& groups, int source, const std::vector<std::uint64_t>& pieces,
                     const std::vector<std::size_t>& from) {
    std::vector<row_group> reversed;
    for (std::size_t end = pieces.size(); end > 0; end = from[end]) {
      const std::uint64_t begin = rows_before(pieces, from[end]);
      reversed.push_back({source, begin, rows_before(pieces, end) - begin});
    }
    groups.insert(groups.end(), reversed.rbegin(), reversed.rend());
  }

  const problem& m_what;
  const costs& m_figures;
  std::vector<int> m_sources;
};

}  // namespace

schedule make_schedule(const problem& what, const costs& figures) {
  schedule result;
  if (what.size == 1 || what.shard_bytes() == 0) {
    result.reason = what.size == 1 ? "one rank has everything: one product" : "A is empty: nothing to gather";
    result.groups = {{what.rank, 0, what.asked.m}};
    return result;
  }
  const planner plans(what, figures);
  const std::uint32_t chunks = what.asked.chunks;
  result.groups = chunks > 0 ? plans.equal_groups(chunks) : plans.best_groups();
  result.chunks =
      static_cast<std::uint32_t>((result.groups.size() - 1) / static_cast<std::size_t>(what.size - 1));
  result.pipelined_us = plans.end_us(result.groups);
  result.sequential_us = plans.sequential_us();
  const std::string prediction = fmt::format("the model predicts {:.0f} us pipelined, {:.0f} us sequential",
                                             result.pipelined_us, result.sequential_us);
  switch (what.asked.mode) {
    case ISTHMUS_FUSED_SEQUENTIAL: result.reason = "sequential was asked for"; break;
    case ISTHMUS_FUSED_PIPELINED:
      result.pipelined = true;
      result.reason = "pipelined was asked for";
      break;
    case ISTHMUS_FUSED_BY_MODEL:
      result.pipelined = result.pipelined_us < least_gain * result.sequential_us;
      result.reason = prediction;
      break;
  }
  return result;
}

void agree_on_mode(communicator& owner, schedule& wished) {
  const auto all = gather_values(owner.meeting(), static_cast<std::int32_t>(wished.pipelined));
  const auto against = std::find(all.begin(), all.end(), 0);
  if (!wished.pipelined || against == all.end()) return;
  wished.pipelined = false;
  wished.reason += fmt::format("; on rank {} it prefers sequential", against - all.begin());
}

}  // namespace isthmus::fused
