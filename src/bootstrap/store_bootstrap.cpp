#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/standby.hpp"
#include "bootstrap/survivors.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

// A wait looks this often whether it was cancelled or interrupted.
constexpr double slice_s = 0.1;

// Under a communicator's scope: the failure of the rank that failed first.
constexpr const char* announcement = "/failure";

// An allgather sets one's own key and gets everyone's. Keys carry a sequence number, so nothing is set twice.
class store_bootstrap final : public bootstrap {
 public:
  store_bootstrap(std::shared_ptr<store> keys, std::string scope, int rank, int size, double timeout_s)
      : m_store(std::move(keys)),
        m_scope(std::move(scope)),
        m_rank(rank),
        m_size(size),
        m_timeout_s(timeout_s),
        m_peers(rank, size),
        m_store_ranks(static_cast<std::size_t>(size)) {
    std::iota(m_store_ranks.begin(), m_store_ranks.end(), 0);
  }

  int rank() const override { return m_rank; }
  int size() const override { return m_size; }
  const char* name() const override { return "store"; }

  void allgather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    try {
      exchange(mine, all);
    } catch (const error& failure) {
      m_out_of_step = true;
      // Before this rank leaves and seems to others to be the one that ended. What it heard from them they
      // know.
      if (!m_cancelled.load(std::memory_order_acquire) && !announced(0))
        announce(m_peers.of_this_rank(failure));
      throw;
    }
  }

  std::unique_ptr<bootstrap> split(int color, int key) override {
    const std::uint64_t sequence = m_sequence;  // names this split, the same on all ranks
    using wish = std::pair<int, int>;
    const wish mine{color, key};
    std::vector<wish> wishes(static_cast<std::size_t>(m_size));
    allgather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(wishes)));
    if (color < 0) return nullptr;
    std::vector<std::pair<int, int>> members;  // (key, old rank)
    for (int rank = 0; rank < m_size; ++rank) {
      const auto& [its_color, its_key] = wishes[static_cast<std::size_t>(rank)];
      if (its_color == color) members.emplace_back(its_key, rank);
    }
    std::sort(members.begin(), members.end());
    std::vector<int> ranks;
    for (const auto& member : members) ranks.push_back(member.second);
    return make_part({m_store, m_store_ranks}, fmt::format("{}/{}c{}", m_scope, sequence, color), ranks);
  }

  survivors shrink(double wait_s) override {
    if (!m_joined.keys) m_joined = {m_store, m_store_ranks};
    while (true) {
      const std::string scope = fmt::format("{}/s{}", m_scope, m_agreements);
      try {
        const auto fate_of = [this](int rank) { return this->fate_of(rank); };
        std::vector<int> ranks = agree_on_survivors(*m_joined.keys, {scope, m_rank, m_size, wait_s, fate_of});
        ++m_agreements;
        auto control = make_part(m_joined, scope, ranks);
        return {std::move(ranks), std::move(control)};
      } catch (const store_lost& lost) {
        m_joined = next_store(explain(lost.why), wait_s);
        m_agreements = 0;
      }
    }
  }

  bool has_lost(std::span<const int> ranks) override {
    constexpr int looks = 10;
    for (int i = 0; i < looks; ++i) {
      try {
        for (const int rank : ranks)
          if (rank != m_rank && fate_of(rank) != fate::unknown) return true;
      } catch (const error&) {  // the store is lost
        return true;
      }
      std::this_thread::sleep_for(look_interval / looks);
    }
    return false;
  }

  standby_address standby() override {
    if (!m_standby) m_standby = m_store->make_standby();
    return m_standby ? m_standby->address() : standby_address{};
  }

  void watch_processes(std::span<const rank_process> processes) override { m_peers.watch(processes); }
  bool out_of_step() const override { return m_out_of_step; }

  void cancel() noexcept override { m_cancelled.store(true, std::memory_order_release); }

  bool announce(const isthmus_error_info& failure) noexcept override {
    if (m_peers.write(failure) && m_peers.all_have_notices()) return true;
    if (announced_in_store(0)) return true;
    try {
      m_store->set(m_scope + announcement, std::as_bytes(std::span(&failure, 1)));
    } catch (...) {  // the store is gone: the others learn of that by themselves
      return false;
    }
    return true;
  }

  std::optional<isthmus_error_info> announced(double wait_s) noexcept override {
    if (m_peers.all_have_notices()) return m_peers.read(wait_s);
    const auto here = m_peers.read();
    if (here && !is_consequence(here->status)) return here;
    // Of those here only what followed is known: the cause may have come from another machine.
    const auto elsewhere = announced_in_store(here ? 0 : wait_s);
    return elsewhere ? elsewhere : here;
  }

 private:
  std::optional<isthmus_error_info> announced_in_store(double wait_s) noexcept {
    isthmus_error_info failure;
    try {
      m_store->get(m_scope + announcement, std::as_writable_bytes(std::span(&failure, 1)), wait_s);
    } catch (...) {  // nobody has, or the store is gone
      return std::nullopt;
    }
    return failure;
  }

  // A store, and by rank the number under which each joined it.
  struct joined_store {
    std::shared_ptr<store> keys;
    std::vector<int> numbers;
  };

  // The bootstrap of those of this one's ranks, in this order.
  std::unique_ptr<store_bootstrap> make_part(const joined_store& met_over, std::string scope,
                                             const std::vector<int>& ranks) const {
    const auto own = std::find(ranks.begin(), ranks.end(), m_rank) - ranks.begin();
    auto part = std::make_unique<store_bootstrap>(met_over.keys, std::move(scope), static_cast<int>(own),
                                                  static_cast<int>(ranks.size()), m_timeout_s);
    std::vector<rank_process> processes;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      part->m_store_ranks[rank] = met_over.numbers[static_cast<std::size_t>(ranks[rank])];
      processes.push_back(m_peers.of(ranks[rank]));
      processes.back().notice = nullptr;  // of this communicator, not of its part
    }
    part->m_peers.watch(processes);
    return part;
  }

  fate fate_of(int rank) const {
    if (m_peers.of(rank).state() == process_state::gone) return fate::ended;
    const auto at = static_cast<std::size_t>(rank);
    if (!m_joined.keys->has_left(m_joined.numbers[at])) return fate::unknown;
    // On one machine it has closed its connection; from another one, the way between may be cut.
    return m_peers.of(rank).pid != 0 ? fate::ended : fate::left;
  }

  // The store of the lowest rank that serves one. Every rank asks in the same order.
  joined_store next_store(const error& why, double wait_s) {
    std::vector<int> numbers(static_cast<std::size_t>(m_size));
    std::iota(numbers.begin(), numbers.end(), 0);
    while (m_next_standby < m_size) {
      const int host = m_next_standby++;
      const rank_process& process = m_peers.of(host);
      if (process.standby.host[0] == '\0' || process.state() != process_state::alive) continue;
      try {
        // Ranks that come later still have to find it.
        if (host == m_rank && m_standby) m_standby->serve(2 * wait_s + 1);
        return {m_store->connect_standby(process.standby, m_rank, m_size, wait_s), std::move(numbers)};
      } catch (const error& failure) {
        if (failure.info().status == ISTHMUS_ERROR_ABORTED) throw;
        log(log_level::info, "rank {}: rank {} serves no store: {}", m_rank, host, failure.what());
      }
    }
    isthmus_error_info info = why.info();
    info.status = ISTHMUS_ERROR_REMOTE;
    copy_text(info.message, sizeof info.message,
              fmt::format("communicator_shrink: the store that the ranks met through is lost: {}",
                          why.info().message));
    copy_text(info.hint, sizeof info.hint,
              "keep the store in a process that outlives the ranks, or meet anew by a unique id");
    throw error(info);
  }

  std::string key(std::uint64_t sequence, int rank) const {
    return fmt::format("{}/{}/{}", m_scope, sequence, rank);
  }

  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) {
    const std::uint64_t sequence = m_sequence++;
    const auto deadline = clock::now() + std::chrono::duration_cast<clock::duration>(seconds(m_timeout_s));
    try {
      m_store->set(key(sequence, m_rank), mine);
    } catch (const error& failure) {
      throw explain(failure);
    }
    for (int rank = 0; rank < m_size; ++rank) {
      const std::span part(all.data() + static_cast<std::size_t>(rank) * mine.size(), mine.size());
      if (rank == m_rank)
        std::copy(mine.begin(), mine.end(), part.begin());
      else
        get(sequence, rank, part, deadline);
    }
    // Everyone has set `sequence`, so everyone has read all of the one before: ours is no longer needed.
    if (sequence > 0) m_store->erase(key(sequence - 1, m_rank));
  }

  void get(std::uint64_t sequence, int rank, std::span<std::byte> part, clock::time_point deadline) {
    auto next_look = clock::now() + look_interval;
    std::optional<int> lost;
    while (true) {
      if (m_cancelled.load(std::memory_order_acquire))
        throw make_error(
            ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE,
            fmt::format("the communicator was aborted while rank {} waited for rank {}", m_rank, rank));
      throw_if_interrupted("the exchange with the other ranks");
      const double left = seconds(deadline - clock::now()).count();
      try {
        m_store->get(key(sequence, rank), part, std::clamp(left, 0.0, slice_s));
        return;
      } catch (const error& failure) {
        if (failure.info().status == ISTHMUS_ERROR_MISMATCH) throw in_another_call(rank, failure);
        if (failure.info().status != ISTHMUS_ERROR_TIMEOUT) throw explain(failure);
        throw_if_announced();
        // Nor has it set its key just before.
        if (lost && (*lost == rank || !has_come(sequence, *lost, part.size()))) throw m_peers.ended(*lost);
        if (left <= slice_s) throw missing(sequence, rank, part.size());
      }
      if (clock::now() < next_look) continue;
      next_look = clock::now() + look_interval;
      try {
        lost = find_lost(rank);
      } catch (const error& failure) {
        throw explain(failure);
      }
    }
  }

  // Of `first` and those after it: whoever is waited for may itself wait for another one.
  std::optional<int> find_lost(int first) {
    if (const auto rank = m_peers.find_ended(first)) return rank;
    if (m_store->has_left(m_store_ranks[static_cast<std::size_t>(first)])) return first;
    return std::nullopt;
  }

  bool has_come(std::uint64_t sequence, int rank, std::size_t bytes) {
    std::vector<std::byte> ignored(bytes);
    try {
      m_store->get(key(sequence, rank), ignored, 0);
      return true;
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_TIMEOUT && failure.info().native_code != ETIMEDOUT)
        return false;
      throw;
    }
  }

  error in_another_call(int rank, const error& failure) const {
    return make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                      fmt::format("rank {} makes another call than rank {}: {}", rank, m_rank, failure.what()),
                      "every rank must create, split and allocate in the same order");
  }

  // The store is lost with the process that holds it, which may be a rank's: it is seen to have ended a moment
  // after its connections closed.
  error explain(const error& failure) const {
    constexpr int looks = 10;
    if (failure.info().status != ISTHMUS_ERROR_REMOTE) return failure;
    for (int i = 0; i < looks; ++i) {
      if (const auto told = m_peers.read()) return failure_elsewhere(*told);
      if (const auto rank = m_peers.find_ended()) return m_peers.ended(*rank);
      std::this_thread::sleep_for(look_interval / looks);
    }
    return failure;
  }

  void throw_if_announced() {
    if (const auto failure = announced(0)) throw failure_elsewhere(*failure);
  }

  // Names every rank that has not come, not only the one that was waited for. `first`: those before it have.
  error missing(std::uint64_t sequence, int first, std::size_t bytes) {
    std::vector<int> ranks;
    const char* doubt = "";
    for (int rank = first; rank < m_size; ++rank) {
      if (rank == m_rank) continue;
      try {
        if (*doubt == '\0' && has_come(sequence, rank, bytes)) continue;
      } catch (const error&) {
        doubt = "; the store does not answer, so some of them may have come";
      }
      ranks.push_back(rank);
    }
    const std::string names = m_peers.describe(ranks, *doubt == '\0');
    return make_error(
        ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
        fmt::format("rank {} of {} waited {} s for the other ranks; missing: {}{}", m_rank, m_size, m_timeout_s,
                    names.empty() ? "none any more, they came late" : names, doubt),
        "every rank must make the same call; a rank that crashed, was stopped or never started is named above");
  }

  std::shared_ptr<store> m_store;
  std::string m_scope;
  int m_rank, m_size;
  double m_timeout_s;
  peers m_peers;
  std::vector<int> m_store_ranks;  // by rank: its number in the store
  std::uint64_t m_sequence = 0;
  std::unique_ptr<isthmus::standby> m_standby;
  // Of shrink: where the ranks meet, how often they have agreed there, who serves next if that is lost.
  joined_store m_joined;
  int m_agreements = 0, m_next_standby = 0;
  bool m_out_of_step = false;
  std::atomic<bool> m_cancelled{false};
};

}  // namespace

std::unique_ptr<bootstrap> make_store_bootstrap(std::shared_ptr<store> store, std::string scope, int rank,
                                                int size, double timeout_s) {
  return std::make_unique<store_bootstrap>(std::move(store), std::move(scope), rank, size, timeout_s);
}

}  // namespace isthmus
