#include <algorithm>
#include <atomic>
#include <chrono>
#include <tuple>
#include <utility>

#include "bootstrap/bootstrap.hpp"
#include "runtime/error.hpp"

namespace isthmus {
namespace {

using clock = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

// A wait looks this often whether it was cancelled.
constexpr double slice_s = 0.2;

// An allgather sets one's own key and gets everyone's. Keys carry a sequence number, so nothing is set twice.
class store_bootstrap final : public bootstrap {
 public:
  store_bootstrap(std::shared_ptr<store> keys, std::string scope, int rank, int size, double timeout_s)
      : m_store(std::move(keys)),
        m_scope(std::move(scope)),
        m_rank(rank),
        m_size(size),
        m_timeout_s(timeout_s) {}

  int rank() const override { return m_rank; }
  int size() const override { return m_size; }
  const char* name() const override { return "store"; }

  void allgather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const std::uint64_t sequence = m_sequence++;
    const auto deadline = clock::now() + std::chrono::duration_cast<clock::duration>(seconds(m_timeout_s));
    m_store->set(key(sequence, m_rank), mine);
    for (int rank = 0; rank < m_size; ++rank) {
      const auto part = all.subspan(static_cast<std::size_t>(rank) * mine.size(), mine.size());
      if (rank == m_rank)
        std::copy(mine.begin(), mine.end(), part.begin());
      else
        get(sequence, rank, part, deadline);
    }
    // Everyone has set `sequence`, so everyone has read all of the one before: ours is no longer needed.
    if (sequence > 0) m_store->erase(key(sequence - 1, m_rank));
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
    const auto own = std::find(members.begin(), members.end(), std::pair(key, m_rank));
    return std::make_unique<store_bootstrap>(m_store, fmt::format("{}/{}c{}", m_scope, sequence, color),
                                             static_cast<int>(own - members.begin()),
                                             static_cast<int>(members.size()), m_timeout_s);
  }

  void cancel() noexcept override { m_cancelled.store(true, std::memory_order_release); }

 private:
  std::string key(std::uint64_t sequence, int rank) const {
    return fmt::format("{}/{}/{}", m_scope, sequence, rank);
  }

  void get(std::uint64_t sequence, int rank, std::span<std::byte> part, clock::time_point deadline) {
    while (true) {
      if (m_cancelled.load(std::memory_order_acquire))
        throw make_error(
            ISTHMUS_ERROR_ABORTED, ISTHMUS_HERE,
            fmt::format("the communicator was aborted while rank {} waited for rank {}", m_rank, rank));
      const double left = seconds(deadline - clock::now()).count();
      try {
        m_store->get(key(sequence, rank), part, std::clamp(left, 0.0, slice_s));
        return;
      } catch (const error& failure) {
        if (failure.info().status != ISTHMUS_ERROR_TIMEOUT) throw;
        if (left <= slice_s) throw missing(sequence, part.size());
      }
    }
  }

  // Names every rank that has not come, not only the one that was waited for.
  error missing(std::uint64_t sequence, std::size_t bytes) {
    std::string ranks;
    std::vector<std::byte> ignored(bytes);
    for (int rank = 0; rank < m_size; ++rank) {
      if (rank == m_rank) continue;
      try {
        m_store->get(key(sequence, rank), ignored, 0);
      } catch (const error&) {
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
    return make_error(
        ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
        fmt::format("rank {} of {} waited {} s for the other ranks; missing: {}", m_rank, m_size, m_timeout_s,
                    ranks.empty() ? "none any more, they came late" : ranks),
        "every rank must make the same call; a rank that crashed or never started is named above");
  }

  std::shared_ptr<store> m_store;
  std::string m_scope;
  int m_rank, m_size;
  double m_timeout_s;
  std::uint64_t m_sequence = 0;
  std::atomic<bool> m_cancelled{false};
};

}  // namespace

std::unique_ptr<bootstrap> make_store_bootstrap(std::shared_ptr<store> store, std::string scope, int rank,
                                                int size, double timeout_s) {
  return std::make_unique<store_bootstrap>(std::move(store), std::move(scope), rank, size, timeout_s);
}

}  // namespace isthmus
