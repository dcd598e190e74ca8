#include "operators/fused/model/schedule.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"

namespace isthmus::fused {
namespace {

constexpr std::uint64_t max_chunks_per_shard = 16;
constexpr std::uint64_t tile_rows = 128;  // cutting inside a tile of a matrix unit only wastes it
constexpr double max_time_ratio = 0.98;       // a prediction is not exact enough to act on less

// A shard's rows cut into at most `most` pieces of a whole number of tiles.
std::vector<std::uint64_t> chunk_rows(std::uint64_t rows, std::uint64_t max_chunks) {
  const std::uint64_t tiles = std::max<std::uint64_t>(1, (rows + tile_rows - 1) / tile_rows);
  const std::uint64_t count = std::min(max_chunks, tiles);
  std::vector<std::uint64_t> chunk_sizes;
  std::uint64_t begin = 0;
  for (std::uint64_t index = 1; index <= count; ++index) {
    const std::uint64_t end = std::min(rows, index == count ? rows : tiles * index / count * tile_rows);
    chunk_sizes.push_back(end - begin);
    begin = end;
  }
  return chunk_sizes;
}

// As the caller asked: equal to a row.
std::vector<std::uint64_t> equal_rows(std::uint64_t rows, std::uint64_t count) {
  std::vector<std::uint64_t> chunk_sizes;
  for (std::uint64_t index = 0; index < count; ++index)
    chunk_sizes.push_back(rows * (index + 1) / count - rows * index / count);
  return chunk_sizes;
}

// What both kinds know of the link.
class planner {
 public:
  planner(const fused_problem& problem, const cost_model& costs) : m_problem(problem), m_costs(costs) {}

  double sequential_us() const {
    const double link_us =
        m_costs.chunk_us + copy_us(m_problem.shard_rows) * static_cast<double>(m_problem.size - 1);
    return (m_costs.collective_us > 0 ? m_costs.collective_us : link_us) +
           m_costs.product_us(m_problem.description.m);
  }

 protected:
  double copy_us(std::uint64_t rows) const {
    return static_cast<double>(rows * m_problem.moved_row_bytes()) / m_costs.bytes_per_us;
  }

  const fused_problem& m_problem;
  const cost_model& m_costs;
};

class gather_planner : public planner {
  using table = std::vector<std::vector<double>>;

 public:
  gather_planner(const fused_problem& problem, const cost_model& costs) : planner(problem, costs) {
    for (int step = 1; step < problem.size; ++step) m_sources.push_back((problem.rank + step) % problem.size);
  }

  std::vector<row_group> equal_groups(std::uint32_t chunks) const {
    std::vector<row_group> groups = {own()};
    for (const int source : m_sources) {
      std::uint64_t begin = 0;
      for (const std::uint64_t rows : equal_rows(m_problem.shard_rows, chunks)) {
        groups.push_back({source, begin, rows, true});
        begin += rows;
      }
    }
    return groups;
  }

  // best[c][p] is the earliest end of c groups that hold everything up to piece p, and from[c][p] where the
  // last of them began. The number of groups counts because each delays all that follow on the link.
  std::vector<row_group> best_groups() const {
    const auto chunk_sizes = chunk_rows(m_problem.shard_rows, max_chunks_per_shard);
    const std::size_t count = chunk_sizes.size();
    std::vector<row_group> groups = {own()};
    double begin_us = m_costs.product_us(m_problem.shard_rows), link_us = 0;
    for (const int source : m_sources) {
      table best(count + 1, std::vector<double>(count + 1, std::numeric_limits<double>::infinity()));
      std::vector<std::vector<std::size_t>> from(count + 1, std::vector<std::size_t>(count + 1, 0));
      best[0][0] = begin_us;
      for (std::size_t chunks = 1; chunks <= count; ++chunks)
        for (std::size_t end = chunks; end <= count; ++end) {
          const double arrived =
              link_us + static_cast<double>(chunks) * m_costs.chunk_us + copy_us(rows_before(chunk_sizes, end));
          std::uint64_t rows = 0;
          for (std::size_t begin = end; begin-- > 0;) {
            rows += chunk_sizes[begin];
            const double done = std::max(best[chunks - 1][begin], arrived) + m_costs.product_us(rows);
            if (done < best[chunks][end]) best[chunks][end] = done, from[chunks][end] = begin;
          }
        }
      std::size_t chosen = 1;
      for (std::size_t chunks = 2; chunks <= count; ++chunks)
        if (best[chunks][count] < best[chosen][count]) chosen = chunks;
      append(groups, source, chunk_sizes, from, chosen);
      begin_us = best[chosen][count];
      link_us += static_cast<double>(chosen) * m_costs.chunk_us + copy_us(m_problem.shard_rows);
    }
    return groups;
  }

  // When the last product ends, chunks arriving one after the other.
  double end_us(const std::vector<row_group>& groups) const {
    double now = 0, link_us = 0;
    for (const row_group& each : groups) {
      if (each.waits_for_chunk) {
        link_us += m_costs.chunk_us + copy_us(each.rows);
        now = m_costs.can_overlap ? std::max(now, link_us) : now + copy_us(each.rows);
      }
      now += m_costs.product_us(each.rows);
    }
    return now + m_costs.fixed_us;
  }

 private:
  row_group own() const { return {m_problem.rank, 0, m_problem.shard_rows, false}; }
  static std::uint64_t rows_before(const std::vector<std::uint64_t>& chunk_sizes, std::size_t end) {
    std::uint64_t rows = 0;
    for (std::size_t index = 0; index < end; ++index) rows += chunk_sizes[index];
    return rows;
  }
  static void append(std::vector<row_group>& groups, int source, const std::vector<std::uint64_t>& chunk_sizes,
                     const std::vector<std::vector<std::size_t>>& from, std::size_t chunks) {
    std::vector<row_group> reversed;
    for (std::size_t end = chunk_sizes.size(); chunks > 0; end = from[chunks--][end]) {
      const std::uint64_t begin = rows_before(chunk_sizes, from[chunks][end]);
      reversed.push_back({source, begin, rows_before(chunk_sizes, end) - begin, true});
    }
    groups.insert(groups.end(), reversed.rbegin(), reversed.rend());
  }

  std::vector<int> m_sources;
};

class scatter_planner : public planner {
 public:
  using planner::planner;

  std::vector<std::uint64_t> chunk_rows_of(std::uint32_t chunks) const {
    return m_problem.description.chunks > 0 ? equal_rows(m_problem.shard_rows, chunks)
                                   : chunk_rows(m_problem.shard_rows, chunks);
  }

  std::vector<row_group> groups(std::uint32_t chunks) const {
    std::vector<row_group> schedule;
    for (int step = 1; step <= m_problem.size; ++step) {
      std::uint64_t begin = 0;
      for (const std::uint64_t rows : chunk_rows_of(chunks)) {
        schedule.push_back({(m_problem.rank - step + m_problem.size) % m_problem.size, begin, rows, step > 1});
        begin += rows;
      }
    }
    return schedule;
  }

  std::uint32_t best_chunks() const {
    std::uint32_t best = 1;
    for (std::uint32_t chunks = 2; chunks <= max_chunks_per_shard; ++chunks)
      if (chunk_rows_of(chunks).size() == chunks && end_us(chunks) < end_us(best)) best = chunks;
    return best;
  }

  // When the last product of a rank ends, all ranks being alike: what a rank has computed in one step is what
  // its neighbour waits for in the next.
  double end_us(std::uint32_t chunks) const {
    const auto chunk_sizes = chunk_rows_of(chunks);
    std::vector<double> done(chunk_sizes.size(), 0);
    double now = 0, link = 0;
    for (int step = 0; step < m_problem.size; ++step)
      for (std::size_t chunk = 0; chunk < chunk_sizes.size(); ++chunk) {
        if (step > 0 && m_costs.can_overlap) {
          link = std::max(link, done[chunk]) + m_costs.chunk_us + copy_us(chunk_sizes[chunk]);
          now = std::max(now, link);
        } else if (step > 0) {
          now += copy_us(chunk_sizes[chunk]);
        }
        now += m_costs.product_us(chunk_sizes[chunk]);
        done[chunk] = now;
      }
    return now + m_costs.fixed_us;
  }
};

void choose_mode(const fused_problem& problem, fused_schedule& schedule) {
  switch (problem.description.mode) {
    case ISTHMUS_FUSED_SEQUENTIAL: schedule.reason = "sequential was asked for"; break;
    case ISTHMUS_FUSED_PIPELINED:
      schedule.is_pipelined = true;
      schedule.reason = "pipelined was asked for";
      break;
    case ISTHMUS_FUSED_BY_MODEL:
      schedule.is_pipelined = schedule.pipelined_us < max_time_ratio * schedule.sequential_us;
      schedule.reason = fmt::format("the model predicts {:.0f} us pipelined, {:.0f} us sequential",
                                schedule.pipelined_us, schedule.sequential_us);
      break;
  }
}

}  // namespace

fused_schedule make_schedule(const fused_problem& problem, const cost_model& costs) {
  fused_schedule result;
  if (problem.size == 1 || problem.moved_bytes() == 0) {
    result.reason = problem.size == 1   ? "one rank has everything: one product"
                    : problem.is_gather() ? "A is empty: nothing to gather"
                                     : "C is empty: nothing to sum";
    result.groups = {{problem.rank, 0, problem.description.m, false}};
    return result;
  }
  const std::uint32_t chunks = problem.description.chunks;
  if (problem.is_gather()) {
    const gather_planner plans(problem, costs);
    result.groups = chunks > 0 ? plans.equal_groups(chunks) : plans.best_groups();
    result.chunks =
        static_cast<std::uint32_t>((result.groups.size() - 1) / static_cast<std::size_t>(problem.size - 1));
    result.pipelined_us = plans.end_us(result.groups);
    result.sequential_us = plans.sequential_us();
  } else {
    const scatter_planner plans(problem, costs);
    result.chunks = chunks > 0 ? chunks : plans.best_chunks();
    result.groups = plans.groups(result.chunks);
    result.pipelined_us = plans.end_us(result.chunks);
    result.sequential_us = plans.sequential_us();
  }
  choose_mode(problem, result);
  return result;
}

void agree_on_schedule(communicator& owner, const fused_problem& problem, fused_schedule& schedule) {
  struct rank_choice {
    std::int32_t is_pipelined;
    std::uint32_t chunks;
  };
  const auto all = gather_values(owner.control(), rank_choice{schedule.is_pipelined, schedule.chunks});
  if (!schedule.is_pipelined) return;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].is_pipelined == 0) {
      schedule.is_pipelined = false;
      schedule.reason += fmt::format("; on rank {} it prefers sequential", rank);
      return;
    }
  if (problem.is_gather() || schedule.chunks == all[0].chunks) return;
  schedule.chunks = all[0].chunks;
  schedule.groups = scatter_planner(problem, {}).groups(schedule.chunks);
}

fused_schedule without_shared_memory(const fused_problem& problem, const fused_schedule& schedule, int nodes) {
  const std::string reason = fmt::format("the ranks are on {} machines, which share no memory", nodes);
  if (problem.description.mode == ISTHMUS_FUSED_PIPELINED)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     "fused_plan_create: pipelined was asked for, but " + reason,
                     "ISTHMUS_FUSED_BY_MODEL takes the sequential form there");
  fused_schedule result = schedule;
  result.is_pipelined = false;
  result.reason = reason;
  return result;
}

std::string name_of(const row_group& each) {
  return fmt::format("rank {} rows {}..{}", each.source, each.begin, each.begin + each.rows);
}

}  // namespace isthmus::fused
