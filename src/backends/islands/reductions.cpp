#include <algorithm>
#include <cstring>

#include "backends/islands/composer.hpp"
#include "backends/islands/convert.hpp"
#include "backends/islands/kinds.hpp"
#include "backends/islands/shards.hpp"
#include "backends/mpi/divide.hpp"
#include "base/tables.hpp"

namespace isthmus::islands {
namespace {

// A reduction of the whole, in terms of what its parts are asked for.
class reduction {
 public:
  reduction(crew& ranks, const isthmus_operation& asked)
      : m_ranks(ranks),
        m_all(ranks.ranks),
        m_asked(asked),
        m_width(bytes_of(asked.datatype)),
        m_sum_type(accumulation_type(asked.datatype, asked.op)),
        m_sum_width(bytes_of(m_sum_type)) {}

  void to_all(cut how);
  void to_one(cut how);
  void to_each();

 private:
  bool widens() const { return m_sum_type != m_asked.datatype; }
  std::uint64_t step(std::uint64_t blocks) const {
    return std::max<std::uint64_t>(1, m_ranks.chunk_bytes / (blocks * m_sum_width));
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
  void pack(const chunk& part, std::byte* to) const;
  void sum_served(const chunk& part, std::byte* in) const;
  void sum_between(const chunk& part, std::byte* in) const;
  void hand_out(const chunk& part, std::byte* from) const;

  crew& m_ranks;
  const layout& m_all;
  const isthmus_operation& m_asked;
  std::uint64_t m_width;
  isthmus_datatype m_sum_type;
  std::uint64_t m_sum_width;
};

void reduction::sum_shards(const shards& cuts, const std::byte* from, std::byte* to) const {
  const part& island = m_ranks.of.within;
  const int own = m_all.own_index();
  const auto sum_piece = [&](piece of, int root) {
    sum(island, kinds::sum_to_one, from + of.at * m_sum_width, own == root ? to + of.at * m_sum_width : nullptr,
        of.count, root);
  };
  if (!m_all.even()) {
    for (int holder = 0; holder < m_all.holders(); ++holder) sum_piece(cuts.of(holder), holder);
    return;
  }
  sum_piece({0, cuts.rest}, 0);
  const std::uint64_t own_at = cuts.rest + static_cast<std::uint64_t>(own) * cuts.each;
  sum(island, kinds::sum_to_each, from + cuts.rest * m_sum_width, to + own_at * m_sum_width, cuts.each);
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
  m_ranks.run_in_chunks(m_asked.count, step(1), work);
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
  m_ranks.run_in_chunks(m_asked.count, step(1), work);
}

// Of every rank's block a chunk, in the order of the layout.
void reduction::pack(const chunk& part, std::byte* to) const {
  for (std::size_t place = 0; place < m_all.order().size(); ++place) {
    const auto rank = static_cast<std::uint64_t>(m_all.order()[place]);
    const std::byte* const from = send(rank * m_asked.count + part.at);
    std::byte* const at = to + place * part.count * m_sum_width;
    if (widens())
      widen(from, m_asked.datatype, at, part.count);
    else
      std::memcpy(at, from, part.count * m_width);
  }
}

// Each holder gets the sums of what it serves.
void reduction::sum_served(const chunk& part, std::byte* in) const {
  const islands::part& island = m_ranks.of.within;
  const auto at = [&](run served) {
    return in + static_cast<std::uint64_t>(served.begin) * part.count * m_sum_width;
  };
  if (m_all.even()) {
    const run own = m_all.served_by(m_all.own_index());
    return sum(island, kinds::sum_to_each, in, at(own), static_cast<std::uint64_t>(own.n) * part.count);
  }
  for (int holder = 0; holder < m_all.holders(); ++holder) {
    const run served = m_all.served_by(holder);
    sum(island, kinds::sum_to_one, at(served), m_all.own_index() == holder ? at(served) : nullptr,
        static_cast<std::uint64_t>(served.n) * part.count, holder);
  }
}

void reduction::sum_between(const chunk& part, std::byte* in) const {
  if (!m_all.holds()) return;
  const int own = m_all.own_index();
  const auto at = [&](run served) {
    return in + static_cast<std::uint64_t>(served.begin) * part.count * m_sum_width;
  };
  if (m_all.even())
    return sum(m_ranks.of.between, kinds::sum_to_each, at(m_all.served_by(own)),
               at(m_all.served_by(own, m_all.own_island())), part.count);
  for (int island = 0; island < m_all.islands(); ++island) {
    const run served = m_all.served_by(own, island);
    sum(m_ranks.of.between, kinds::sum_to_one, at(served), m_all.own_island() == island ? at(served) : nullptr,
        static_cast<std::uint64_t>(served.n) * part.count, island);
  }
}

void reduction::hand_out(const chunk& part, std::byte* from) const {
  const int own = m_all.own_index();
  std::byte* made = recv(part.at);
  if (m_all.holds()) {
    const run served = m_all.served_by(own, m_all.own_island());
    std::byte* const at = from + static_cast<std::uint64_t>(served.begin) * part.count * m_sum_width;
    const auto count = static_cast<std::uint64_t>(served.n) * part.count;
    if (!m_all.even()) made = results(part, count);
    finish(at, made, count);
  }
  if (m_all.even()) return;
  spans out, in;
  for (int index = 0; index < m_all.own_ranks(); ++index) {
    const bool served = index % m_all.holders() == own, serves = own % m_all.holders() == index;
    out.add(static_cast<std::uint64_t>(index / m_all.holders()) * part.count, served ? part.count : 0);
    in.add(0, serves ? part.count : 0);
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
  const auto blocks = static_cast<std::uint64_t>(m_all.size());
  const auto memory = [&](const chunk& part) { return sums(part, part.count * blocks); };
  stages work;
  work.gather = [&](const chunk& part) {
    pack(part, memory(part));
    sum_served(part, memory(part));
  };
  work.cross = [&](const chunk& part) { sum_between(part, memory(part)); };
  work.scatter = [&](const chunk& part) { hand_out(part, memory(part)); };
  m_ranks.run_in_chunks(m_asked.count, step(blocks), work);
}

}  // namespace

void run_reduction(crew& ranks, const isthmus_operation& operation, cut how) {
  const collective_row& row = row_of(operation.collective);
  reduction asked(ranks, operation);
  if (row.send_extent == extent::count_x_size) return asked.to_each();
  if (row.recv_at == site::root) return asked.to_one(how);
  asked.to_all(how);
}

}  // namespace isthmus::islands
