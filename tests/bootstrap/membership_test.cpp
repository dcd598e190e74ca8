// The first exchange of the ranks: what each rank learns about the others, and versions that differ.
#include "bootstrap/membership.hpp"

#include <isthmus/backend.h>
#include <isthmus/isthmus.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/process.hpp"
#include "bootstrap/support.hpp"

namespace {

using namespace isthmus;

TEST(membership, describes_the_ranks_of_one_process) {
  const auto keys = make_local_store();
  test::run_on_each_rank(3, [&](int rank) {
    const auto ranks = make_store_bootstrap(keys, "isthmus", rank, 3, 20);
    const membership result = exchange_membership(*ranks, {});
    EXPECT_EQ(result.rank, rank);
    EXPECT_EQ(result.size, 3);
    EXPECT_EQ(result.node_rank, rank);
    EXPECT_EQ(result.node_size, 3);
    EXPECT_EQ(result.process_size, 3);
    EXPECT_EQ(result.pid_of, std::vector<std::int64_t>(3, getpid()));
    for (const rank_process& each : result.rank_processes) {
      EXPECT_EQ(each.pid, getpid());
      EXPECT_EQ(each.start, process_start_time(getpid()));
    }
  });
}

// Rank 0 of two. Rank 1 contributes the same, except that its version or ABI is one higher.
class newer_peer final : public bootstrap {
 public:
  explicit newer_peer(std::array<std::uint32_t, 2> difference) : m_difference(difference) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  const char* name() const override { return "newer_peer"; }
  void allgather(std::span<const std::byte> contribution, std::span<std::byte> all) override {
    const std::array<std::uint32_t, 2> own{
        ISTHMUS_VERSION_MAJOR << 16 | ISTHMUS_VERSION_MINOR << 8 | ISTHMUS_VERSION_PATCH, ISTHMUS_BACKEND_ABI};
    const std::array<std::uint32_t, 2> other{own[0] + m_difference[0], own[1] + m_difference[1]};
    std::ranges::copy(contribution, all.begin());
    const auto peer = all.subspan(contribution.size());
    std::ranges::copy(contribution, peer.begin());
    const auto position = std::ranges::search(peer, std::as_bytes(std::span(own)));
    ASSERT_FALSE(position.empty()) << "the record contains no version and ABI";
    std::ranges::copy(std::as_bytes(std::span(other)), position.begin());
  }

 private:
  std::unique_ptr<bootstrap> split_off(int, int, const std::vector<int>&) override { return nullptr; }
  std::array<std::uint32_t, 2> m_difference;
};

TEST(membership, other_version_or_abi_is_a_mismatch) {
  const std::string own =
      fmt::format("{}.{}.{}", ISTHMUS_VERSION_MAJOR, ISTHMUS_VERSION_MINOR, ISTHMUS_VERSION_PATCH);
  const std::string newer =
      fmt::format("{}.{}.{}", ISTHMUS_VERSION_MAJOR, ISTHMUS_VERSION_MINOR, ISTHMUS_VERSION_PATCH + 1);
  const int abi = ISTHMUS_BACKEND_ABI;
  for (const bool is_abi : {true, false}) {
    newer_peer ranks(is_abi ? std::array{0u, 1u} : std::array{1u, 0u});
    const auto failure = test::error_of([&] { exchange_membership(ranks, {}); });
    EXPECT_EQ(failure.status, ISTHMUS_ERROR_MISMATCH);
    const std::string expected = fmt::format("rank 0 has {} (ABI {}), rank 1 has {} (ABI {})", own, abi,
                                             is_abi ? own : newer, is_abi ? abi + 1 : abi);
    EXPECT_NE(std::string(failure.message).find(expected), std::string::npos) << failure.message;
  }
}

}  // namespace
