#include "operators/fused/model/schedule.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "bootstrap/exchange.hpp"

namespace isthmus::fused {
namespace {

constexpr std::uint64_t max_chunks_per_shard = 16;
// Chunks are whole tiles of a matrix unit, because partial tiles waste it.
constexpr std::uint64_t tile_rows = 128;
constexpr double max_time_ratio = 0.98;  // predictions are not accurate enough to act on smaller gains

// Splits the rows of a shard into at most `chunk_limit` chunks of whole tiles.
std::vector<std::uint64_t> chunk_rows(std::uint64_t rows, std::uint64_t chunk_limit) {
  const std::uint64_t tiles = std::max<std::uint64_t>(1, (rows + tile_rows - 1) / tile_rows);
  const std::uint64_t count = std::min(chunk_limit, tiles);
  std::vector<std::uint64_t> chunk_sizes;
  std::uint64_t begin = 0;
  for (std::uint64_t index = 1; index <= count; ++index) {
    const std::uint64_t end = std::min(rows, index == count ? rows : tiles * index / count * tile_rows);
    chunk_sizes.push_back(end - begin);
    begin = end;
  }
  return chunk_sizes;
}

// Splits the rows into `count` chunks whose sizes differ by at most one row, as the caller requested.
std::vector<std::uint64_t> equal_rows(std::uint64_t rows, std::uint64_t count) {
  std::vector<std::uint64_t> chunk_sizes;
  for (std::uint64_t index = 0; index < count; ++index)
    chunk_sizes.push_back(rows * (index + 1) / count - rows * index / count);
  return chunk_sizes;
}

// Common base of both planners: the cost of the link and of the sequential mode.
class planner {
 public:
  planner(const fused_problem& problem, const cost_model& costs) : m_problem(problem), m_costs(costs) {}

  void predict(fused_schedule& schedule) const {
    const double link_us =
        m_costs.chunk_us + copy_us(m_problem.shard_rows) * static_cast<double>(m_problem.size - 1);
    const double collective_us = m_costs.collective_us > 0 ? m_costs.collective_us : link_us;
    schedule.transfer_us = std::min(link_us, collective_us);
    schedule.sequential_us = collective_us + schedule.product_us;
  }

 protected:
  double copy_us(std::uint64_t rows) const {
    return static_cast<double>(rows * m_problem.moved_row_bytes()) / m_costs.bytes_per_us;
  }
  // If a program calls a plan again and again, a run takes at least this long. Captured runs do not take the host's time,
  // so it does not count if the pipelined form was requested.
  double host_us(std::size_t groups) const {
    if (m_problem.description.mode == ISTHMUS_FUSED_PIPELINED) return 0;
    return m_costs.host_us + m_costs.group_host_us * static_cast<double>(groups);
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
    std::vector<row_group> groups = {own_group()};
    for (const int source : m_sources) {
      std::uint64_t begin = 0;
      for (const std::uint64_t rows : equal_rows(m_problem.shard_rows, chunks)) {
        groups.push_back({source, begin, rows, true});
        begin += rows;
      }
    }
    return groups;
  }

  // best[c][p] is the earliest end of c groups that cover the first p chunks, and previous[c][p] is where the
  // last group begins. The number of groups matters because each group delays all later ones on the link.
  std::vector<row_group> best_groups() const {
    const auto chunk_sizes = chunk_rows(m_problem.shard_rows, max_chunks_per_shard);
    const std::size_t count = chunk_sizes.size();
    std::vector<row_group> groups = {own_group()};
    double begin_us = m_costs.product_us(m_problem.shard_rows), link_us = 0;
    for (const int source : m_sources) {
      table best(count + 1, std::vector<double>(count + 1, std::numeric_limits<double>::infinity()));
      std::vector<std::vector<std::size_t>> previous(count + 1, std::vector<std::size_t>(count + 1, 0));
      best[0][0] = begin_us;
      for (std::size_t chunks = 1; chunks <= count; ++chunks)
        for (std::size_t end = chunks; end <= count; ++end) {
          const double arrival_us =
              link_us + static_cast<double>(chunks) * m_costs.chunk_us + copy_us(rows_before(chunk_sizes, end));
          std::uint64_t rows = 0;
          for (std::size_t begin = end; begin-- > 0;) {
            rows += chunk_sizes[begin];
            const double done_us = std::max(best[chunks - 1][begin], arrival_us) + m_costs.product_us(rows);
            if (done_us < best[chunks][end]) best[chunks][end] = done_us, previous[chunks][end] = begin;
          }
        }
      const auto time_us = [&](std::size_t chunks) {
        return std::max(best[chunks][count] + m_costs.fixed_us, host_us(groups.size() + chunks));
      };
      std::size_t group_count = 1;
      for (std::size_t chunks = 2; chunks <= count; ++chunks)
        if (time_us(chunks) < time_us(group_count)) group_count = chunks;
      append_groups(groups, source, chunk_sizes, previous, group_count);
      begin_us = best[group_count][count];
      link_us += static_cast<double>(group_count) * m_costs.chunk_us + copy_us(m_problem.shard_rows);
    }
    return groups;
  }

  // End of the last product if chunks arrive one after the other.
  double end_us(const std::vector<row_group>& groups) const {
    double now = 0, link_us = 0;
    for (const row_group& group : groups) {
      if (group.waits_for_chunk) {
        link_us += m_costs.chunk_us + copy_us(group.rows);
        now = m_costs.can_overlap ? std::max(now, link_us) : now + copy_us(group.rows);
      }
      now += m_costs.product_us(group.rows);
    }
    return std::max(now + m_costs.fixed_us, host_us(groups.size()));
  }

 private:
  row_group own_group() const { return {m_problem.rank, 0, m_problem.shard_rows, false}; }
  static std::uint64_t rows_before(const std::vector<std::uint64_t>& chunk_sizes, std::size_t end) {
    std::uint64_t rows = 0;
    for (std::size_t index = 0; index < end; ++index) rows += chunk_sizes[index];
    return rows;
  }
  static void append_groups(std::vector<row_group>& groups, int source,
                            const std::vector<std::uint64_t>& chunk_sizes,
                            const std::vector<std::vector<std::size_t>>& previous, std::size_t chunks) {
    std::vector<row_group> reversed_groups;
    for (std::size_t end = chunk_sizes.size(); chunks > 0; end = previous[chunks--][end]) {
      const std::uint64_t begin = rows_before(chunk_sizes, previous[chunks][end]);
      reversed_groups.push_back({source, begin, rows_before(chunk_sizes, end) - begin, true});
    }
    groups.insert(groups.end(), reversed_groups.rbegin(), reversed_groups.rend());
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
    std::vector<row_group> result;
    for (int step = 1; step <= m_problem.size; ++step) {
      std::uint64_t begin = 0;
      for (const std::uint64_t rows : chunk_rows_of(chunks)) {
        result.push_back({(m_problem.rank - step + m_problem.size) % m_problem.size, begin, rows, step > 1});
        begin += rows;
      }
    }
    return result;
  }

  std::uint32_t best_chunks() const {
    std::uint32_t best = 1;
    for (std::uint32_t chunks = 2; chunks <= max_chunks_per_shard; ++chunks)
      if (chunk_rows_of(chunks).size() == chunks && end_us(chunks) < end_us(best)) best = chunks;
    return best;
  }

  // End of a rank's last product if all ranks behave identically: the result of one step is what the next rank
  // waits for in its next step.
  double end_us(std::uint32_t chunks) const {
    const auto chunk_sizes = chunk_rows_of(chunks);
    std::vector<double> done_us(chunk_sizes.size(), 0);
    double now = 0, link = 0;
    for (int step = 0; step < m_problem.size; ++step)
      for (std::size_t chunk = 0; chunk < chunk_sizes.size(); ++chunk) {
        if (step > 0 && m_costs.can_overlap) {
          link = std::max(link, done_us[chunk]) + m_costs.chunk_us + copy_us(chunk_sizes[chunk]);
          now = std::max(now, link);
        } else if (step > 0) {
          now += copy_us(chunk_sizes[chunk]);
        }
        now += m_costs.product_us(chunk_sizes[chunk]);
        done_us[chunk] = now;
      }
    return std::max(now + m_costs.fixed_us,
                    host_us(chunk_sizes.size() * static_cast<std::size_t>(m_problem.size)));
  }
};

void choose_mode(const fused_problem& problem, fused_schedule& schedule) {
  switch (problem.description.mode) {
    case ISTHMUS_FUSED_SEQUENTIAL: schedule.reason = "sequential was requested"; break;
    case ISTHMUS_FUSED_PIPELINED:
      schedule.is_pipelined = true;
      schedule.reason = "pipelined was requested";
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
  result.has_prediction = costs.is_known;
  result.product_us = costs.product_us(problem.description.m);
  if (problem.size == 1 || problem.moved_bytes() == 0) {
    result.reason = problem.size == 1     ? "a single rank needs only one product"
                    : problem.is_gather() ? "A is empty: there is nothing to gather"
                                          : "C is empty: there is nothing to sum";
    result.groups = {{problem.rank, 0, problem.description.m, false}};
    result.pipelined_us = result.sequential_us = result.product_us;
    return result;
  }
  const std::uint32_t chunks = problem.description.chunks;
  if (problem.is_gather()) {
    const gather_planner plans(problem, costs);
    result.groups = chunks > 0 ? plans.equal_groups(chunks) : plans.best_groups();
    result.chunks =
        static_cast<std::uint32_t>((result.groups.size() - 1) / static_cast<std::size_t>(problem.size - 1));
    result.pipelined_us = plans.end_us(result.groups);
    plans.predict(result);
  } else {
    const scatter_planner plans(problem, costs);
    result.chunks = chunks > 0 ? chunks : plans.best_chunks();
    result.groups = plans.groups(result.chunks);
    result.pipelined_us = plans.end_us(result.chunks);
    plans.predict(result);
  }
  choose_mode(problem, result);
  return result;
}

fused_schedule make_allreduce_schedule(const fused_problem& problem, const std::string& obstacle) {
  fused_schedule result;
  result.has_prediction = false;
  result.groups = {{problem.rank, 0, problem.description.m, false}};
  const isthmus_fused_mode mode = problem.description.mode;
  if (problem.size == 1) {
    result.reason = "a single rank needs only one product";
  } else if (problem.moved_bytes() == 0) {
    result.reason = "C is empty: there is nothing to sum";
  } else if (mode == ISTHMUS_FUSED_SEQUENTIAL) {
    result.reason = "sequential was requested";
  } else if (obstacle.empty()) {
    result.is_pipelined = true;
    result.reason = mode == ISTHMUS_FUSED_PIPELINED ? "pipelined was requested"
                                                    : "one kernel computes the product and the sum";
  } else if (mode == ISTHMUS_FUSED_PIPELINED) {
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     "fused_plan_create: pipelined was requested, but " + obstacle,
                     "use ISTHMUS_FUSED_BY_MODEL, which selects sequential in this case");
  } else {
    result.reason = obstacle;
  }
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
      schedule.reason += fmt::format("; rank {} prefers sequential", rank);
      return;
    }
  if (problem.is_gather() || schedule.chunks == all[0].chunks) return;
  schedule.chunks = all[0].chunks;
  schedule.groups = scatter_planner(problem, {}).groups(schedule.chunks);
}

fused_schedule sequential_fallback(const fused_problem& problem, const fused_schedule& schedule, int nodes) {
  const std::string reason = fmt::format("the ranks are on {} machines, which share no memory", nodes);
  if (problem.description.mode == ISTHMUS_FUSED_PIPELINED)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     "fused_plan_create: pipelined was requested, but " + reason,
                     "use ISTHMUS_FUSED_BY_MODEL, which selects sequential in this case");
  fused_schedule result = schedule;
  result.is_pipelined = false;
  result.has_prediction = false;  // the costs are those of one machine
  result.reason = reason;
  return result;
}

std::string name_of(const row_group& group) {
  return fmt::format("rank {} rows {}..{}", group.source, group.begin, group.begin + group.rows);
}

}  // namespace isthmus::fused
