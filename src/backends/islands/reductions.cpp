#include <algorithm>
#include <cstring>

#include "backends/islands/composer.hpp"
#include "backends/islands/convert.hpp"
#include "backends/islands/kinds.hpp"
#include "backends/islands/shards.hpp"
#include "backends/mpi/divide.hpp"
#include "base/block_map.hpp"
#include "base/tables.hpp"

namespace isthmus::hierarchical {
namespace {

// A reduction of the whole, in terms of what its parts are asked for.
class reduction {
 public:
  reduction(crew& ranks, const isthmus_operation& asked)
      : m_ranks(ranks),
        m_all(ranks.ranks),
        m_asked(asked),
        m_blocks(asked, ranks.ranks.rank(), ranks.ranks.size()),
        m_width(bytes_of(asked.datatype)),
        m_sum_type(accumulation_type(asked.datatype, asked.op)),
        m_sum_width(bytes_of(m_sum_type)) {}

  void to_all(cut how);
  void to_one(cut how);
  void to_each();

 private:
  bool widens() const { return m_sum_type != m_asked.datatype; }
  // Of all ranks' blocks, where each has `count` elements.
  std::uint64_t step(std::uint64_t count, std::uint64_t blocks = 1) const {
    return m_ranks.step(count, blocks * m_sum_width);
  }
  const std::byte* send(std::uint64_t at) const {
    return static_cast<const std::byte*>(m_asked.send_buf) + at * m_width;
  }
  std::byte* recv(std::uint64_t at) const { return static_cast<std::byte*>(m_asked.recv_buf) + at * m_width; }
  std::byte* sums(const chunk& of, std::uint64_t count) const {
    return m_ranks.sums[static_cast<std::size_t>(of.slot)].at_least(count * m_sum_width);
  }
  std::byte* results(const chunk& of, std::uint64_t count) const {
    return m_ranks.results[static_cast<std::size_t>(of.slot)].at_least(count * m_width);
  }

  void sum(const part& by, isthmus_collective collective, const void* from, void* to, std::uint64_t count,
           int root = 0) const {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = m_sum_type;
    // The average is of the sum of all.
    operation.op = m_asked.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_asked.op;
    operation.count = count;
    operation.root = root;
    operation.send_buf = from;
    operation.recv_buf = to;
    if (count > 0) by.run(operation);
  }

  // Each rank of the part gets the sums of its run of `in`, where that lies.
  void sum_runs(const part& by, std::byte* in, const spans& runs, int own_rank) const {
    sum_runs(by, in, in, runs, own_rank);
  }
  // The same from `from` into the own run of `to`.
  void sum_runs(const part& by, const std::byte* from, std::byte* to, const spans& runs, int own_rank) const;

  // Sums of `from` over this island: each holder's shard at its place in `to`, which may be `from`.
  void sum_shards(const shards& cuts, const std::byte* from, std::byte* to) const;
  // What is summed over all islands becomes what was asked for. `to` may be `from` where nothing is widened.
  void finish(std::byte* from, std::byte* to, std::uint64_t count) const {
    if (m_asked.op == ISTHMUS_AVG) mpi::divide(from, count, m_sum_type, m_all.size());
    if (widens())
      narrow(from, m_asked.datatype, to, count);
    else if (from != to)
      std::memcpy(to, from, count * m_width);
  }

  // The steps of to_each.
  std::uint64_t length(int rank, const chunk& of) const {
    const std::uint64_t all = m_blocks.send.length(rank);
    return all <= of.at ? 0 : std::min(of.count, all - of.at);
  }
  void pack(const packed& blocks, const chunk& part, std::byte* to) const;
  void sum_served(const packed& blocks, std::byte* in) const;
  void sum_between(const packed& blocks, std::byte* in) const;
  void hand_out(const packed& blocks, const chunk& part, std::byte* from) const;

  crew& m_ranks;
  const layout& m_all;
  const isthmus_operation& m_asked;
  block_map m_blocks;
  std::uint64_t m_width;
  isthmus_datatype m_sum_type;
  std::uint64_t m_sum_width;
};

void reduction::sum_runs(const part& by, const std::byte* from, std::byte* to, const spans& runs,
                         int own_rank) const {
  if (std::ranges::all_of(runs.counts, [](std::uint64_t count) { return count == 0; })) return;
  const auto own = static_cast<std::size_t>(own_rank);
  isthmus_operation operation{};
  operation.collective = kinds::sum_to_each_run;
  operation.datatype = m_sum_type;
  operation.op = m_asked.op == ISTHMUS_AVG ? ISTHMUS_SUM : m_asked.op;
  operation.count = runs.counts[own];
  operation.send_buf = from;
  operation.recv_buf = to + runs.displs[own] * m_sum_width;
  operation.send_counts = runs.counts.data();
  operation.send_displs = runs.displs.data();
  by.run(operation);
}

void reduction::sum_shards(const shards& cuts, const std::byte* from, std::byte* to) const {
  const part& node = m_ranks.of.within;
  const int own = m_all.own_index();
  if (cuts.each == 0 || m_all.holders() == 1)  // the first holder has it all
    return sum(node, kinds::sum_to_one, from, own == 0 ? to : nullptr, cuts.of(0).count);
  if (!m_all.even() || cuts.rest > 0) return sum_runs(node, from, to, spans_of(cuts, m_all.own_ranks()), own);
  sum(node, kinds::sum_to_each, from, to + static_cast<std::uint64_t>(own) * cuts.each * m_sum_width,
      cuts.each);
}

void reduction::to_all(cut how) {
  const auto cuts = [this, how](const chunk& part) { return shards(part.count, m_all.holders(), how); };
  const auto summed = [this](const chunk& part) { return widens() ? sums(part, part.count) : recv(part.at); };
  stages work;
  work.gather = [&](const chunk& part) {
    std::byte* const to = summed(part);
    if (widens()) widen(send(part.at), m_asked.datatype, to, part.count);
    sum_shards(cuts(part), widens() ? to : send(part.at), to);
  };
  work.cross = [&](const chunk& part) {
    if (!m_all.holds()) return;
    const piece own = cuts(part).of(m_all.own_index());
    std::byte* const at = summed(part) + own.at * m_sum_width;
    sum(m_ranks.of.between, kinds::sum_to_all, at, at, own.count);
    finish(at, recv(part.at + own.at), own.count);
  };
  work.scatter = [&](const chunk& part) { share_within(m_ranks, cuts(part), m_asked.datatype, recv(part.at)); };
  m_ranks.run_in_chunks(m_asked.count, step(m_asked.count), work);
}

void reduction::to_one(cut how) {
  const auto cuts = [this, how](const chunk& part) { return shards(part.count, m_all.holders(), how); };
  const int root_island = m_all.island_of(m_asked.root);
  stages work;
  work.gather = [&](const chunk& part) {
    std::byte* const to = sums(part, part.count);
    if (widens()) widen(send(part.at), m_asked.datatype, to, part.count);
    sum_shards(cuts(part), widens() ? to : send(part.at), to);
  };
  work.cross = [&](const chunk& part) {
    if (!m_all.holds()) return;
    const piece own = cuts(part).of(m_all.own_index());
    std::byte* const at = sums(part, part.count) + own.at * m_sum_width;
    const bool takes = m_all.own_island() == root_island;
    sum(m_ranks.of.between, kinds::sum_to_one, at, takes ? at : nullptr, own.count, root_island);
    if (takes) finish(at, results(part, part.count), own.count);
  };
  work.scatter = [&](const chunk& part) {
    if (m_all.own_island() != root_island) return;
    const spans blocks = spans_of(cuts(part), m_all.own_ranks());
    isthmus_operation operation{};
    operation.collective = kinds::runs_to_one;
    operation.datatype = m_asked.datatype;
    operation.root = m_all.index_of(m_asked.root);
    operation.count = blocks.counts[static_cast<std::size_t>(m_all.own_index())];
    operation.send_buf = results(part, part.count);
    operation.recv_buf = m_all.rank() == m_asked.root ? recv(part.at) : nullptr;
    operation.recv_counts = blocks.counts.data();
    operation.recv_displs = blocks.displs.data();
    m_ranks.of.within.run(operation);
  };
  m_ranks.run_in_chunks(m_asked.count, step(m_asked.count), work);
}

// Of every rank's block a chunk, in the order of the layout.
void reduction::pack(const packed& blocks, const chunk& part, std::byte* to) const {
  for (std::size_t place = 0; place < m_all.order().size(); ++place) {
    const piece block = blocks.at(place);
    if (block.count == 0) continue;
    const std::byte* const from = send(m_blocks.send.begin(m_all.order()[place]) + part.at);
    std::byte* const at = to + block.at * m_sum_width;
    if (widens())
      widen(from, m_asked.datatype, at, block.count);
    else
      std::memcpy(at, from, block.count * m_width);
  }
}

// Each holder gets the sums of what it serves.
void reduction::sum_served(const packed& blocks, std::byte* in) const {
  const hierarchical::part& node = m_ranks.of.within;
  const int own = m_all.own_index();
  if (m_all.even() && blocks.equal()) {
    const piece mine = blocks.of(m_all.served_by(own));
    return sum(node, kinds::sum_to_each, in, in + mine.at * m_sum_width, mine.count);
  }
  spans runs;
  for (int index = 0; index < m_all.own_ranks(); ++index) {
    const piece served = index < m_all.holders() ? blocks.of(m_all.served_by(index)) : piece{};
    runs.add(served.at, served.count);
  }
  sum_runs(node, in, runs, own);
}

void reduction::sum_between(const packed& blocks, std::byte* in) const {
  if (!m_all.holds()) return;
  const int own = m_all.own_index(), node = m_all.own_island();
  const auto at = [&](piece of) { return in + of.at * m_sum_width; };
  const piece mine = blocks.of(m_all.served_by(own, node));
  if (m_all.even() && blocks.equal())
    return sum(m_ranks.of.between, kinds::sum_to_each, at(blocks.of(m_all.served_by(own))), at(mine),
               mine.count);
  spans runs;
  for (int each = 0; each < m_all.nodes(); ++each) {
    const piece served = blocks.of(m_all.served_by(own, each));
    runs.add(served.at, served.count);
  }
  sum_runs(m_ranks.of.between, in, runs, node);
}

void reduction::hand_out(const packed& blocks, const chunk& part, std::byte* from) const {
  const int own = m_all.own_index();
  std::byte* made = recv(part.at);
  if (m_all.holds()) {
    const piece served = blocks.of(m_all.served_by(own, m_all.own_island()));
    if (!m_all.even()) made = results(part, served.count);
    if (served.count > 0) finish(from + served.at * m_sum_width, made, served.count);
  }
  if (m_all.even()) return;
  spans out, in;
  std::uint64_t next = 0;
  for (int index = 0; index < m_all.own_ranks(); ++index) {
    const int rank = m_all.members(m_all.own_island())[static_cast<std::size_t>(index)];
    const bool served = index % m_all.holders() == own, serves = own % m_all.holders() == index;
    out.add(next, served ? length(rank, part) : 0);
    in.add(0, serves ? length(m_all.rank(), part) : 0);
    next += out.counts.back();
  }
  isthmus_operation operation{};
  operation.collective = kinds::runs_to_each;
  operation.datatype = m_asked.datatype;
  operation.send_buf = m_all.holds() ? made : nullptr;
  operation.recv_buf = recv(part.at);
  operation.send_counts = out.counts.data();
  operation.send_displs = out.displs.data();
  operation.recv_counts = in.counts.data();
  operation.recv_displs = in.displs.data();
  m_ranks.of.within.run(operation);
}

void reduction::to_each() {
  std::uint64_t longest = 0;
  for (int rank = 0; rank < m_all.size(); ++rank) longest = std::max(longest, m_blocks.send.length(rank));
  const auto blocks = [this](const chunk& part) {
    return packed(m_all, [&](int rank) { return length(rank, part); });
  };
  const auto memory = [this](const chunk& part, const packed& of) { return sums(part, of.total()); };
  stages work;
  work.gather = [&](const chunk& part) {
    const packed of = blocks(part);
    pack(of, part, memory(part, of));
    sum_served(of, memory(part, of));
  };
  work.cross = [&](const chunk& part) {
    const packed of = blocks(part);
    sum_between(of, memory(part, of));
  };
  work.scatter = [&](const chunk& part) {
    const packed of = blocks(part);
    hand_out(of, part, memory(part, of));
  };
  m_ranks.run_in_chunks(longest, step(longest, static_cast<std::uint64_t>(m_all.size())), work);
}

}  // namespace

void run_reduction(crew& ranks, const isthmus_operation& operation, cut how) {
  if (ranks.device) return run_device_reduction(ranks, operation, how);
  const collective_row& row = row_of(operation.collective);
  reduction asked(ranks, operation);
  if (row.send_extent != extent::count) return asked.to_each();
  if (row.recv_ranks == buffer_ranks::root) return asked.to_one(how);
  asked.to_all(how);
}

}  // namespace isthmus::hierarchical
