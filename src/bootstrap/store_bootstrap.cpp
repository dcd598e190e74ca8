#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/interrupt.hpp"
#include "base/log.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/exchange.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/tcp_store.hpp"
#include "failure/wait.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

// Interval at which a wait checks for cancellation and interrupts.
constexpr double slice_s = 0.1;

// Key of a communicator's scope: the first published failure.
constexpr const char* failure_key = ":failure";
// Key of a communicator's scope, followed by a rank: that rank has aborted.
constexpr const char* abort_key = ":given_up/";

// Bootstrap on a store. In an allgather each rank sets its own key and reads the keys of all ranks. Keys
// contain a sequence number, so no key is set twice. A colon follows the scope of a communicator in its keys,
// and a slash in the scopes of communicators that result from it, so its keys can be released before theirs.
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

  ~store_bootstrap() override {
    try {
      m_store->release(m_scope, m_size);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the store is lost, and its keys with it
    }
  }
  store_bootstrap(const store_bootstrap&) = delete;
  store_bootstrap& operator=(const store_bootstrap&) = delete;

  int rank() const override { return m_rank; }
  int size() const override { return m_size; }
  const char* name() const override { return "store"; }

  void allgather(std::span<const std::byte> contribution, std::span<std::byte> all) override {
    try {
      exchange(contribution, all);
    } catch (const error& failure) {
      m_is_out_of_sync = true;
      // Publish the failure before this rank exits; otherwise its peers would report this rank as the cause. If
      // a peer has already published a failure, the other ranks know it.
      if (!m_is_cancelled.load(std::memory_order_acquire) && !wait_for_failure(0))
        publish_failure(m_peers.make_failure_info(failure));
      throw;
    }
  }

  survivors shrink(double wait_s) override {
    if (!m_rendezvous) {
      std::vector<rank_process> processes;
      for (int rank = 0; rank < m_size; ++rank) {
        processes.push_back(m_peers.process(rank));
        processes.back().record = nullptr;  // the rendezvous outlives this communicator
      }
      m_rendezvous = std::make_shared<rendezvous>(m_store, m_store_ranks, m_scope, m_rank, std::move(processes),
                                                  std::move(m_fallback_store));
      m_rendezvous_ranks.resize(static_cast<std::size_t>(m_size));
      std::iota(m_rendezvous_ranks.begin(), m_rendezvous_ranks.end(), 0);
    }
    while (true) {
      try {
        return make_survivors(m_rendezvous->agree(wait_s));
      } catch (const store_lost& lost_rank) {
        m_rendezvous->switch_store(attribute_loss(lost_rank.cause), wait_s);
      } catch (const error& failure) {  // its failed ranks are numbered as in the rendezvous
        std::vector<int> ranks;
        for (const int failed_rank : failure.info().failed_ranks())
          if (const auto own = std::ranges::find(m_rendezvous_ranks, failed_rank);
              own != m_rendezvous_ranks.end())
            ranks.push_back(static_cast<int>(own - m_rendezvous_ranks.begin()));
        throw failure.with_failed_ranks(ranks);
      }
    }
  }

  bool has_lost_any_of(std::span<const int> ranks) override {
    const auto has_lost_any = [&] {
      try {
        return std::ranges::any_of(ranks, [&](int rank) {
          return rank != m_rank && m_rendezvous->peer_state_of(rendezvous_rank(rank)) != peer_state::unknown;
        });
      } catch (const error&) {  // the store is lost
        return true;
      }
    };
    return poll_until(has_lost_any, deadline_after(poll_interval), poll_interval / 10);
  }

  fallback_address own_fallback_address() override {
    if (m_rendezvous) return m_rendezvous->address();
    if (!m_fallback_store) m_fallback_store = m_store->make_fallback_store();
    return m_fallback_store ? m_fallback_store->address() : fallback_address{};
  }

  void watch_processes(std::span<const rank_process> processes) override { m_peers.watch(processes); }
  bool is_out_of_sync() const override { return m_is_out_of_sync; }

  void cancel() noexcept override { m_is_cancelled.store(true, std::memory_order_release); }
  void disconnect() noexcept override { m_store->disconnect(); }

  bool publish_failure(const failure_info& failure) noexcept override {
    if (m_peers.publish(failure) && m_peers.has_all_records()) return true;
    try {
      publish_in_store(std::as_bytes(std::span(&failure, 1)));
    } catch (...) {  // the store is lost, and the other ranks detect that themselves
      return false;
    }
    return true;
  }

  std::optional<failure_info> wait_for_failure(double wait_s) noexcept override {
    if (m_peers.has_all_records()) return m_peers.read_failure(wait_s);
    const auto deadline = clock::now() + std::chrono::duration_cast<clock::duration>(seconds(wait_s));
    for (double remaining_s = wait_s;; remaining_s = seconds(deadline - clock::now()).count()) {
      const auto local_failure = m_peers.read_failure();
      if (local_failure && !is_secondary_status(local_failure->status)) return local_failure;
      // Ranks of this node have only published secondary failures, so the cause may be on another node.
      const auto begin = clock::now();
      const double slice = std::clamp(remaining_s, 0.0, slice_s);
      const auto stored_failure = failure_in_store(local_failure ? 0 : slice);
      if (stored_failure || local_failure || remaining_s <= slice_s)
        return stored_failure ? stored_failure : local_failure;
      // A lost store fails immediately.
      sleep_until(begin + std::chrono::duration_cast<clock::duration>(seconds(slice)));
    }
  }

  void mark_aborted() noexcept override {
    if (m_has_aborted.exchange(true)) return;
    try {
      m_store->set(fmt::format("{}{}{}", m_scope, abort_key, m_rank), std::array{std::byte{1}});
    } catch (...) {  // NOLINT(bugprone-empty-catch): the store is lost, and there is no other channel
    }
  }

  std::optional<bool> has_aborted(int rank, double wait_s) noexcept override {
    if (wait_s > 0 && has_abort_key(rank, wait_s)) return true;
    if (!is_store_responsive()) return std::nullopt;
    return has_abort_key(rank, 0);  // a slow store may have received the key in time
  }

  std::optional<bool> is_disconnected(int rank) noexcept override {
    if (!is_store_responsive()) return std::nullopt;
    try {
      return m_store->is_disconnected(m_store_ranks[static_cast<std::size_t>(rank)]);
    } catch (...) {  // the store is lost
      return std::nullopt;
    }
  }

 private:
  // The sequence number identifies the split and is equal on all ranks.
  std::unique_ptr<bootstrap> split_off(int color, int, const std::vector<int>& ranks) override {
    if (color < 0) return nullptr;
    return make_child(m_store, fmt::format("{}/{}c{}", m_scope, m_sequence, color), ranks,
                      [this](int rank) { return m_store_ranks[static_cast<std::size_t>(rank)]; });
  }

  std::optional<failure_info> failure_in_store(double wait_s) noexcept {
    failure_info failure;
    try {
      m_store->get(m_scope + failure_key, std::as_writable_bytes(std::span(&failure, 1)), wait_s);
    } catch (...) {  // no failure has been published, or the store is lost
      return std::nullopt;
    }
    return failure;
  }

  // Prefers set_if_absent, which needs no reply from a store that may be stopped. Some stores do not support
  // set_if_absent and report that only when it is called.
  void publish_in_store(std::span<const std::byte> failure) {
    try {
      return m_store->set_if_absent(m_scope + failure_key, failure);
    } catch (const error& refusal) {
      if (refusal.info().status == ISTHMUS_ERROR_REMOTE) throw;  // the store is lost
    }
    if (!failure_in_store(0)) m_store->set(m_scope + failure_key, failure);
  }

  // Returns true if the store answers a query for this rank's own abort key. This rank has already written that
  // key, so a responsive store always finds it. The timeout is not 0, because with 0 the client would wait much
  // longer for the reply of a stopped store.
  bool is_store_responsive() noexcept {
    constexpr double reply_wait_s = 0.1;
    return has_abort_key(m_rank, reply_wait_s);
  }

  bool has_abort_key(int rank, double wait_s) noexcept {
    std::array<std::byte, 1> result{};
    try {
      m_store->get(fmt::format("{}{}{}", m_scope, abort_key, rank), result, wait_s);
      return true;
    } catch (...) {  // the rank has not aborted, or the store is lost
      return false;
    }
  }

  // Creates the bootstrap of a subset of the ranks, in this order. `store_number` returns a rank's number in
  // the store `keys`.
  std::unique_ptr<store_bootstrap> make_child(std::shared_ptr<store> keys, std::string scope,
                                              const std::vector<int>& ranks,
                                              const std::function<int(int)>& store_number) const {
    const auto own_index = std::find(ranks.begin(), ranks.end(), m_rank) - ranks.begin();
    auto child =
        std::make_unique<store_bootstrap>(std::move(keys), std::move(scope), static_cast<int>(own_index),
                                          static_cast<int>(ranks.size()), m_timeout_s);
    child->m_parent_ranks = ranks;
    std::vector<rank_process> processes;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      child->m_store_ranks[rank] = store_number(ranks[rank]);
      processes.push_back(m_peers.process(ranks[rank]));
      processes.back().record = nullptr;  // the record belongs to the parent communicator
    }
    child->m_peers.watch(processes);
    return child;
  }

  // All agreed ranks belong to this communicator, because the agreement excludes every rank that this rank
  // knows to be excluded.
  survivors make_survivors(rendezvous::agreement result) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < m_size; ++rank)
      if (std::ranges::binary_search(result.ranks, rendezvous_rank(rank))) ranks.push_back(rank);
    auto child = make_child(std::move(result.keys), std::move(result.scope), ranks,
                            [this](int rank) { return m_rendezvous->store_number(rendezvous_rank(rank)); });
    child->m_rendezvous = m_rendezvous;
    child->m_rendezvous_ranks = std::move(result.ranks);
    return {std::move(ranks), std::move(child)};
  }

  int rendezvous_rank(int rank) const { return m_rendezvous_ranks[static_cast<std::size_t>(rank)]; }

  std::string key(std::uint64_t sequence, int rank) const {
    return fmt::format("{}:{}/{}", m_scope, sequence, rank);
  }

  void exchange(std::span<const std::byte> contribution, std::span<std::byte> all) {
    const std::uint64_t sequence = m_sequence++;
    const auto deadline = clock::now() + std::chrono::duration_cast<clock::duration>(seconds(m_timeout_s));
    try {
      m_store->set(key(sequence, m_rank), contribution);
    } catch (const error& failure) {
      throw attribute_loss(failure);
    }
    for (int rank = 0; rank < m_size; ++rank) {
      const std::span block(all.data() + static_cast<std::size_t>(rank) * contribution.size(),
                            contribution.size());
      if (rank == m_rank)
        std::copy(contribution.begin(), contribution.end(), block.begin());
      else
        get(sequence, rank, contribution, block, deadline);
    }
    // All ranks have already set `sequence`, so all have read every key of the previous exchange. Erase
    // this rank's key.
    if (sequence > 0) m_store->erase(key(sequence - 1, m_rank));
  }

  void get(std::uint64_t sequence, int rank, std::span<const std::byte> contribution,
           std::span<std::byte> block, clock::time_point deadline) {
    auto next_poll = clock::now() + poll_interval;
    std::optional<int> lost_rank;
    while (true) {
      if (m_is_cancelled.load(std::memory_order_acquire))
        throw make_error(
            ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE,
            fmt::format("the communicator was aborted while rank {} waited for rank {}", m_rank, rank));
      throw_if_interrupted("the exchange with the other ranks");
      const double remaining_s = seconds(deadline - clock::now()).count();
      try {
        m_store->get(key(sequence, rank), block, std::clamp(remaining_s, 0.0, slice_s));
        return;
      } catch (const error& failure) {
        if (failure.info().status == ISTHMUS_ERROR_MISMATCH)
          throw mismatch_error(sequence, rank, contribution, failure);
        if (failure.info().status != ISTHMUS_ERROR_TIMEOUT) throw attribute_loss(failure);
        throw_if_failure_published();
        // The rank may have set its key just before it exited.
        if (lost_rank && (*lost_rank == rank || !has_contributed(sequence, *lost_rank, block.size())))
          throw m_peers.exited_error(*lost_rank);
        if (remaining_s <= slice_s) throw missing_ranks_error(sequence, rank, block.size());
      }
      if (clock::now() < next_poll) continue;
      next_poll = clock::now() + poll_interval;
      try {
        lost_rank = find_lost(rank);
      } catch (const error& failure) {
        throw attribute_loss(failure);
      }
    }
  }

  // Checks all ranks starting at `first`, because the awaited rank may itself be waiting for another rank.
  std::optional<int> find_lost(int first) {
    if (const auto rank = m_peers.find_exited(first)) return rank;
    if (m_store->is_disconnected(m_store_ranks[static_cast<std::size_t>(first)])) return first;
    return std::nullopt;
  }

  bool has_contributed(std::uint64_t sequence, int rank, std::size_t bytes) {
    std::vector<std::byte> ignored(bytes);
    try {
      m_store->get(key(sequence, rank), ignored, 0);
      return true;
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_MISMATCH) return true;
      if (failure.info().status == ISTHMUS_ERROR_TIMEOUT && failure.info().native_code != ETIMEDOUT)
        return false;
      throw;
    }
  }

  // If one of the two ranks votes that it cannot continue, while the other one still exchanges data of the step
  // that failed, the refusal is the cause.
  error mismatch_error(std::uint64_t sequence, int rank, std::span<const std::byte> contribution,
                       const error& failure) const {
    vote<no_value> ballot;
    const auto ballot_bytes = std::as_writable_bytes(std::span(&ballot, 1));
    if (contribution.size() == ballot_bytes.size()) {
      std::ranges::copy(contribution, ballot_bytes.begin());
      if (ballot.is_refusal())
        return make_error(isthmus_status(ballot.status), ISTHMUS_HERE, ballot.text, ballot.hint,
                          ballot.native_code);
    } else if (!capture_error([&] { m_store->get(key(sequence, rank), ballot_bytes, 0); }) &&
               ballot.is_refusal()) {
      return make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                        fmt::format("rank {} failed: {}", rank, ballot.text), ballot.hint, ballot.native_code);
    }
    return make_error(
        ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
        fmt::format("rank {} made a different call than rank {}: {}", rank, m_rank, failure.what()),
        "create, split and allocate in the same order on every rank");
  }

  // Attributes the loss of the store to a rank if that rank's process served it. The exit of a process becomes
  // visible shortly after its connections have closed.
  error attribute_loss(const error& failure) const {
    if (failure.info().status != ISTHMUS_ERROR_REMOTE) return failure;
    error cause = failure;
    const auto has_cause = [&] {
      if (const auto result = m_peers.read_failure())
        cause = remote_failure(*result);
      else if (const auto rank = m_peers.find_exited())
        cause = m_peers.exited_error(*rank);
      else
        return false;
      return true;
    };
    poll_until(has_cause, deadline_after(poll_interval), poll_interval / 10);
    return cause;
  }

  void throw_if_failure_published() {
    if (const auto failure = wait_for_failure(0)) throw remote_failure(*failure);
  }

  // Names every missing rank, not only the one that this rank waits for. All ranks before
  // `first` have contributed.
  error missing_ranks_error(std::uint64_t sequence, int first, std::size_t bytes) {
    const std::string wait =
        fmt::format("rank {} of {} waited {} s for the other ranks; ", m_rank, m_size, m_timeout_s);
    std::vector<int> ranks;
    try {
      for (int rank = first; rank < m_size; ++rank)
        if (rank != m_rank && !has_contributed(sequence, rank, bytes)) ranks.push_back(rank);
    } catch (const error&) {
      std::string text =
          fmt::format("{}{} does not answer, so the missing ranks are unknown", wait, m_store->name());
      if (const std::string states = m_peers.describe({}); !states.empty()) text += "; " + states;
      return make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE, text,
                        "check whether the process that created the id, which serves the store, is stopped or "
                        "overloaded");
    }
    const std::string names = m_peers.describe(ranks);
    return make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                      wait + "missing: " +
                          (names.empty() ? "none now (the last ranks arrived after the timeout)" : names),
                      "make the same call on every rank, and check whether the missing ranks crashed, are "
                      "stopped or never started")
        .with_failed_ranks(ranks);
  }

  std::shared_ptr<store> m_store;
  std::string m_scope;
  int m_rank, m_size;
  double m_timeout_s;
  peer_monitor m_peers;
  std::vector<int> m_store_ranks;  // by rank: number in the store
  std::uint64_t m_sequence = 0;
  std::unique_ptr<isthmus::fallback_store> m_fallback_store;
  std::shared_ptr<rendezvous> m_rendezvous;  // set by the first shrink
  std::vector<int> m_rendezvous_ranks;       // by rank: number in the rendezvous, ascending
  bool m_is_out_of_sync = false;
  std::atomic<bool> m_is_cancelled{false};
  std::atomic<bool> m_has_aborted{false};
};

}  // namespace

std::unique_ptr<bootstrap> make_store_bootstrap(std::shared_ptr<store> store, std::string scope, int rank,
                                                int size, double timeout_s) {
  return std::make_unique<store_bootstrap>(std::move(store), std::move(scope), rank, size, timeout_s);
}

}  // namespace isthmus
