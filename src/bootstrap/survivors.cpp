#include "bootstrap/survivors.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/interrupt.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr double prompt_answer_s = 4;  // a store that lives answers sooner
constexpr auto fate_interval = 200ms;
constexpr auto longest_pause = 20ms;

// What the store does not do, or not soon, it will not do any more.
template <typename Question>
auto ask(Question&& question) {
  const auto begin = clock::now();
  try {
    return question();
  } catch (const error& failure) {
    const isthmus_status status = failure.info().status;
    if (status == ISTHMUS_ERROR_UNSUPPORTED || status == ISTHMUS_ERROR_ABORTED) throw;
    const bool is_absent = status == ISTHMUS_ERROR_TIMEOUT && failure.info().native_code != ETIMEDOUT;
    if (!is_absent || clock::now() - begin > std::chrono::duration<double>(prompt_answer_s))
      throw store_lost{failure};
    throw;
  }
}

class attempt {
 public:
  attempt(store& keys, const roll_call& call)
      : m_keys(keys),
        m_call(call),
        m_members(call.members.empty() ? std::vector<std::uint8_t>(static_cast<std::size_t>(call.size), 1)
                                       : call.members),
        m_here(m_members.size()),
        m_fates(m_members.size(), fate::unknown) {}

  // A store that is only stopped must not tell its own rank, later, that this one is still there.
  std::vector<int> run_or_withdraw() {
    try {
      return run();
    } catch (const store_lost&) {
      try {
        m_keys.erase(here(m_call.rank));
      } catch (const error&) {  // NOLINT(bugprone-empty-catch): lost for good
      }
      throw;
    }
  }

 private:
  std::vector<int> run() {
    const auto deadline = clock::now() + std::chrono::duration<double>(m_call.wait_s);
    ask([&] { m_keys.set(here(m_call.rank), std::as_bytes(std::span(m_members))); });
    m_here[static_cast<std::size_t>(m_call.rank)] = present;
    auto pause = 1ms;
    while (true) {
      throw_if_interrupted("the agreement on who goes on");
      if (read(decision(), std::as_writable_bytes(std::span(m_list)))) return decided();
      look();
      if (!may_come(static_cast<std::size_t>(m_call.rank))) throw left_out();
      if (all_are_known() || clock::now() >= deadline) {
        check_majority();
        propose();
        continue;
      }
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::milliseconds>(2 * pause, longest_pause);
    }
  }

  static constexpr std::uint8_t present = 1;

  std::string here(int rank) const { return fmt::format("{}/here/{}", m_call.scope, rank); }
  std::string decision() const { return m_call.scope + "/decision"; }

  bool read(const std::string& key, std::span<std::byte> value) {
    try {
      ask([&] { m_keys.get(key, value, 0); });
      return true;
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_TIMEOUT) return false;
      throw;
    }
  }

  void look() {
    for (int rank = 0; rank < m_call.size; ++rank) {
      std::uint8_t& known = m_here[static_cast<std::size_t>(rank)];
      std::vector<std::uint8_t> members(m_members.size());
      if (known != 0 || !read(here(rank), std::as_writable_bytes(std::span(members)))) continue;
      known = present;
      for (std::size_t i = 0; i < members.size(); ++i) m_members[i] &= members[i];
    }
    if (clock::now() < m_next_peer_poll) return;
    m_next_peer_poll = clock::now() + fate_interval;
    for (int rank = 0; rank < m_call.size; ++rank)
      if (rank != m_call.rank)
        m_fates[static_cast<std::size_t>(rank)] = ask([&] { return m_call.fate_of(rank); });
  }

  bool may_come(std::size_t rank) const { return m_members[rank] != 0 && m_fates[rank] != fate::ended; }
  bool came(std::size_t rank) const {
    return m_members[rank] != 0 && m_here[rank] != 0 && m_fates[rank] == fate::unknown;
  }

  bool all_are_known() const {
    for (std::size_t rank = 0; rank < m_here.size(); ++rank)
      if (m_members[rank] != 0 && m_here[rank] == 0 && m_fates[rank] == fate::unknown) return false;
    return true;
  }

  // Two disjoint parts that both pass this would each be larger than the other.
  void check_majority() const {
    std::size_t here = 0;
    std::string doubtful;
    std::size_t doubts = 0;
    bool has_lowest = false, is_lowest = true;
    for (std::size_t rank = 0; rank < m_here.size(); ++rank) {
      if (!may_come(rank)) continue;
      if (std::exchange(is_lowest, false)) has_lowest = came(rank);
      here += came(rank) ? 1 : 0;
      if (came(rank)) continue;
      doubtful += fmt::format("{}{}", doubts++ == 0 ? "" : ", ", rank);
    }
    if (here > doubts || (here == doubts && has_lowest)) return;
    throw make_error(
        ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
        fmt::format(
            "communicator_shrink: {} of {} ranks came within {} s, and nobody knows whether rank {} ended: "
            "the others may go on without rank {}",
            here, m_call.size, m_call.wait_s, doubtful, m_call.rank),
        "end the processes of these ranks for certain and shrink again, or meet anew by a unique id");
  }

  void propose() {
    std::vector<std::uint8_t> list;
    for (std::size_t rank = 0; rank < m_here.size(); ++rank) list.push_back(came(rank) ? present : 0);
    ask([&] { m_keys.set_if_absent(decision(), std::as_bytes(std::span(list))); });
    // The answer to the request before says nothing of this one.
    try {
      m_keys.get(decision(), std::as_writable_bytes(std::span(m_list)), prompt_answer_s);
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_ABORTED) throw;
      throw store_lost{failure};
    }
  }

  std::vector<int> decided() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < m_call.size; ++rank)
      if (m_list[static_cast<std::size_t>(rank)] != 0) ranks.push_back(rank);
    if (m_list[static_cast<std::size_t>(m_call.rank)] == 0) throw left_out();
    return ranks;
  }

  error left_out() const {
    return make_error(
        ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
        fmt::format("communicator_shrink: the others have gone on without rank {}: it came too late",
                    m_call.rank),
        "destroy this communicator and join the others by a unique id of theirs");
  }

  store& m_keys;
  const roll_call& m_call;
  // By rank.
  std::vector<std::uint8_t> m_members;  // 0: left out before, as one of those who came knows
  std::vector<std::uint8_t> m_here;
  std::vector<fate> m_fates;
  std::vector<std::uint8_t> m_list = std::vector<std::uint8_t>(m_here.size());
  clock::time_point m_next_peer_poll{};
};

}  // namespace

std::vector<int> agree_on_survivors(store& keys, const roll_call& call) {
  return attempt(keys, call).run_or_withdraw();
}

survivors bootstrap::shrink(double) {
  throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                   fmt::format("communicator_shrink: ranks that met through {} can't shrink", name()),
                   "make a new communicator by a unique id");
}

}  // namespace isthmus
