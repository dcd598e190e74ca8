#include "bootstrap/rendezvous.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <numeric>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "bootstrap/exchange.hpp"
#include "failure/wait.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr double max_reply_s = 4;  // a live store answers sooner
constexpr auto peer_poll_interval = 200ms;
constexpr auto max_pause = 20ms;

// Runs a query; a store that fails or does not answer in time is considered lost.
template <typename Query>
auto query_store(Query&& query) {
  const auto begin = clock::now();
  try {
    return query();
  } catch (const error& failure) {
    const isthmus_status status = failure.info().status;
    if (status == ISTHMUS_ERROR_UNSUPPORTED || status == ISTHMUS_ERROR_ABORTED) throw;
    const bool is_missing_key = status == ISTHMUS_ERROR_TIMEOUT && failure.info().native_code != ETIMEDOUT;
    if (!is_missing_key || clock::now() - begin > std::chrono::duration<double>(max_reply_s))
      throw store_lost{failure};
    throw;
  }
}

class survivor_protocol {
 public:
  survivor_protocol(store& keys, const survivor_round& round)
      : m_keys(keys),
        m_round(round),
        m_members(round.members.empty() ? std::vector<std::uint8_t>(static_cast<std::size_t>(round.size), 1)
                                        : round.members),
        m_has_joined(m_members.size()),
        m_peer_states(m_members.size(), peer_state::unknown) {}

  // If the store is lost, withdraws this rank's key. The process that serves the store may only be stopped, and
  // its rank must not find the key when it resumes.
  std::vector<int> run_or_withdraw() {
    try {
      return run();
    } catch (const store_lost&) {
      try {
        m_keys.erase(presence_key(m_round.rank));
      } catch (const error&) {  // NOLINT(bugprone-empty-catch): the store is lost
      }
      throw;
    }
  }

 private:
  std::vector<int> run() {
    const auto deadline = deadline_after(m_round.wait_s);
    query_store([&] { m_keys.set(presence_key(m_round.rank), std::as_bytes(std::span(m_members))); });
    m_has_joined[static_cast<std::size_t>(m_round.rank)] = present;
    const auto has_decision = [&] {
      throw_if_interrupted("the agreement on the surviving ranks");
      if (read(decision_key(), std::as_writable_bytes(std::span(m_decision)))) return poll_result::done;
      poll_ranks();
      if (!may_participate(static_cast<std::size_t>(m_round.rank))) throw exclusion_error();
      if (!is_every_rank_resolved() && clock::now() < deadline) return poll_result::pending;
      check_majority();
      propose();
      return poll_result::progress;
    };
    poll_until_done(has_decision, poll_pause(1ms, max_pause));
    return survivors_of_decision();
  }

  static constexpr std::uint8_t present = 1;

  std::string presence_key(int rank) const { return fmt::format("{}/here/{}", m_round.scope, rank); }
  std::string decision_key() const { return m_round.scope + "/decision"; }

  bool read(const std::string& key, std::span<std::byte> value) {
    try {
      query_store([&] { m_keys.get(key, value, 0); });
      return true;
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_TIMEOUT) return false;
      throw;
    }
  }

  void poll_ranks() {
    for (int rank = 0; rank < m_round.size; ++rank) {
      std::uint8_t& joined_flag = m_has_joined[static_cast<std::size_t>(rank)];
      std::vector<std::uint8_t> members(m_members.size());
      if (joined_flag != 0 || !read(presence_key(rank), std::as_writable_bytes(std::span(members)))) continue;
      joined_flag = present;
      std::ranges::transform(m_members, members, m_members.begin(), std::bit_and());
    }
    if (clock::now() < m_next_peer_poll) return;
    m_next_peer_poll = clock::now() + peer_poll_interval;
    for (int rank = 0; rank < m_round.size; ++rank)
      if (rank != m_round.rank)
        m_peer_states[static_cast<std::size_t>(rank)] =
            query_store([&] { return m_round.peer_state_of(rank); });
  }

  bool may_participate(std::size_t rank) const {
    return m_members[rank] != 0 && m_peer_states[rank] != peer_state::exited;
  }
  bool has_joined(std::size_t rank) const {
    return m_members[rank] != 0 && m_has_joined[rank] != 0 && m_peer_states[rank] == peer_state::unknown;
  }

  bool is_every_rank_resolved() const {
    for (std::size_t rank = 0; rank < m_has_joined.size(); ++rank)
      if (m_members[rank] != 0 && m_has_joined[rank] == 0 && m_peer_states[rank] == peer_state::unknown)
        return false;
    return true;
  }

  // Prevents split brain: the participants must outnumber the ranks whose state is unknown, and a tie goes to
  // the side with the lowest rank. Therefore, two disjoint groups can never both pass this check.
  void check_majority() const {
    std::size_t joined_ranks = 0;
    std::vector<int> uncertain_ranks;
    bool includes_lowest_rank = false, is_first = true;
    for (std::size_t rank = 0; rank < m_has_joined.size(); ++rank) {
      if (!may_participate(rank)) continue;
      if (std::exchange(is_first, false)) includes_lowest_rank = has_joined(rank);
      if (has_joined(rank))
        ++joined_ranks;
      else
        uncertain_ranks.push_back(static_cast<int>(rank));
    }
    const std::size_t uncertain = uncertain_ranks.size();
    if (joined_ranks > uncertain || (joined_ranks == uncertain && includes_lowest_rank)) return;
    throw make_error(
        ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
        fmt::format("communicator_shrink: {} of {} ranks participated within {} s, and it is unknown whether "
                    "rank {} exited: "
                    "the other ranks may continue without rank {}",
                    joined_ranks, m_round.size, m_round.wait_s, fmt::join(uncertain_ranks, ", "), m_round.rank),
        "kill the processes of these ranks and shrink again, or create a new communicator from a unique id")
        .with_failed_ranks(uncertain_ranks);
  }

  void propose() {
    std::vector<std::uint8_t> proposal;
    for (std::size_t rank = 0; rank < m_has_joined.size(); ++rank)
      proposal.push_back(has_joined(rank) ? present : 0);
    query_store([&] { m_keys.set_if_absent(decision_key(), std::as_bytes(std::span(proposal))); });
    // Confirm the proposal: a reply to an earlier request does not prove that this request arrived.
    try {
      m_keys.get(decision_key(), std::as_writable_bytes(std::span(m_decision)), max_reply_s);
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_ABORTED) throw;
      throw store_lost{failure};
    }
  }

  std::vector<int> survivors_of_decision() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < m_round.size; ++rank)
      if (m_decision[static_cast<std::size_t>(rank)] != 0) ranks.push_back(rank);
    if (m_decision[static_cast<std::size_t>(m_round.rank)] == 0) throw exclusion_error();
    return ranks;
  }

  error exclusion_error() const {
    return make_error(
        ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
        fmt::format("communicator_shrink: the other ranks continued without rank {}, which was too late",
                    m_round.rank),
        "destroy this communicator and create a new one with the other ranks from a unique id");
  }

  store& m_keys;
  const survivor_round& m_round;
  // By rank.
  std::vector<std::uint8_t> m_members;  // 0: excluded earlier, according to some participant
  std::vector<std::uint8_t> m_has_joined;
  std::vector<peer_state> m_peer_states;
  std::vector<std::uint8_t> m_decision = std::vector<std::uint8_t>(m_has_joined.size());
  clock::time_point m_next_peer_poll{};
};

}  // namespace

std::vector<int> agree_on_survivors(store& keys, const survivor_round& round) {
  return survivor_protocol(keys, round).run_or_withdraw();
}

std::unique_ptr<bootstrap> bootstrap::split(int color, int key) {
  struct request {
    int color, key;
  };
  const auto requests = gather_values(*this, request{color, key});
  std::vector<std::pair<int, int>> members;  // (key, old rank)
  for (int rank = 0; rank < size(); ++rank)
    if (const request& other = requests[static_cast<std::size_t>(rank)]; color >= 0 && other.color == color)
      members.emplace_back(other.key, rank);
  std::ranges::sort(members);
  std::vector<int> ranks;
  for (const auto& member : members) ranks.push_back(member.second);
  return split_off(color, key, ranks);
}

survivors bootstrap::shrink(double) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   fmt::format("communicator_shrink: bootstrap {} does not support shrinking", name()),
                   "create a new communicator from a unique id");
}

rendezvous::rendezvous(std::shared_ptr<store> keys, std::vector<int> store_numbers, std::string scope, int rank,
                       std::vector<rank_process> processes, std::unique_ptr<fallback_store> own_fallback)
    : m_first_store(std::move(keys)),
      m_store(m_first_store),
      m_store_numbers(std::move(store_numbers)),
      m_scope(std::move(scope)),
      m_rank(rank),
      m_size(static_cast<int>(processes.size())),
      m_processes(std::move(processes)),
      m_own_fallback(std::move(own_fallback)),
      m_members(m_processes.size(), 1) {}

rendezvous::agreement rendezvous::agree(double wait_s) {
  const std::lock_guard lock(m_mutex);
  std::string scope = fmt::format("{}/s{}", m_scope, m_agreements);
  const auto probe = [this](int rank) { return probe_peer(rank); };
  std::vector<int> ranks = agree_on_survivors(*m_store, {scope, m_rank, m_size, wait_s, probe, m_members});
  ++m_agreements;
  std::ranges::fill(m_members, 0);
  for (const int rank : ranks) m_members[static_cast<std::size_t>(rank)] = 1;
  return {std::move(ranks), std::move(scope), m_store};
}

void rendezvous::switch_store(const error& cause, double wait_s) {
  const std::lock_guard lock(m_mutex);
  while (m_next_fallback < m_size) {
    const int server_rank = m_next_fallback++;
    const rank_process& peer_process = process(server_rank);
    if (peer_process.fallback.host[0] == '\0' || peer_process.state() != process_state::alive) continue;
    try {
      // Serve the store long enough for ranks that arrive later.
      if (server_rank == m_rank && m_own_fallback) m_own_fallback->serve(2 * wait_s + 1);
      m_store = m_first_store->connect_fallback_store(peer_process.fallback, m_rank, m_size, wait_s);
      std::iota(m_store_numbers.begin(), m_store_numbers.end(), 0);
      m_agreements = 0;
      return;
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_ABORTED) throw;
      log(log_level::info, "rank {}: no fallback store on rank {}: {}", m_rank, server_rank, failure.what());
    }
  }
  isthmus_error_info info = cause.info();
  info.status = ISTHMUS_ERROR_REMOTE;
  copy_text(info.message, sizeof info.message,
            fmt::format("communicator_shrink: the store of the ranks is lost: {}", cause.info().message));
  copy_text(
      info.hint, sizeof info.hint,
      "run the store in a process that outlives the ranks, or create a new communicator from a unique id");
  throw error(info);
}

peer_state rendezvous::peer_state_of(int rank) const {
  const std::lock_guard lock(m_mutex);
  return probe_peer(rank);
}

int rendezvous::store_number(int rank) const {
  const std::lock_guard lock(m_mutex);
  return m_store_numbers[static_cast<std::size_t>(rank)];
}

peer_state rendezvous::probe_peer(int rank) const {
  const rank_process& peer_process = process(rank);
  if (peer_process.has_exited()) return peer_state::exited;
  if (!m_store->is_disconnected(m_store_numbers[static_cast<std::size_t>(rank)])) return peer_state::unknown;
  // A rank of this machine has closed its connection. For a rank of another machine, the network may
  // be down instead.
  return peer_process.pid != 0 ? peer_state::exited : peer_state::disconnected;
}

}  // namespace isthmus
