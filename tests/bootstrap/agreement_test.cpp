// Agreement of the ranks: either all continue, or all report the same failure.
#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <future>
#include <isthmus/plugin.hpp>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/exchange.hpp"
#include "bootstrap/support.hpp"

namespace {

using namespace isthmus;

constexpr int size = 3;

// Runs `work(bootstrap, rank)` concurrently on every rank.
template <typename Work>
void run_on_all_ranks(Work&& work) {
  const auto shared = make_local_store();
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto own = make_store_bootstrap(shared, "agreement", rank, size, 5);
      work(*own, rank);
    }));
  for (auto& each : ranks) each.get();
}

std::optional<error> failure_on(int rank, int failing_rank, isthmus_status status) {
  if (rank != failing_rank) return std::nullopt;
  return make_error(status, ISTHMUS_HERE, "no device here", "plug one in", 42);
}

TEST(agreement, every_rank_gets_every_value) {
  run_on_all_ranks([](bootstrap& ranks, int rank) {
    EXPECT_EQ(agree(ranks, 10 + rank, std::nullopt, "setting up failed"), (std::vector<int>{10, 11, 12}));
  });
}

TEST(agreement, one_failure_is_thrown_on_every_rank) {
  run_on_all_ranks([](bootstrap& ranks, int rank) {
    const auto own = failure_on(rank, 1, ISTHMUS_ERROR_SYSTEM);
    const auto failure = test::error_of([&] { agree(ranks, rank, own, "setting up failed"); });
    if (rank == 1) {
      EXPECT_EQ(failure.status, ISTHMUS_ERROR_SYSTEM);
      EXPECT_STREQ(failure.message, "no device here");
    } else {
      EXPECT_EQ(failure.status, ISTHMUS_ERROR_REMOTE);
      EXPECT_STREQ(failure.message, "setting up failed on rank 1: no device here");
      EXPECT_TRUE(std::ranges::equal(failure.failed_ranks(), std::array{1}));
    }
    EXPECT_EQ(failure.native_code, 42);
  });
}

TEST(agreement, first_of_several_failures_is_reported) {
  run_on_all_ranks([](bootstrap& ranks, int rank) {
    std::optional<error> own;
    if (rank > 0) own = make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE, "trouble " + std::to_string(rank));
    const auto all = gather_votes(ranks, no_value{}, own);
    EXPECT_EQ(first_refusal(all), 1);
    EXPECT_EQ(refusal_text(all), "rank 1: trouble 1");
  });
}

// The backends vote, then the core votes on their results.
TEST(agreement, result_of_an_earlier_vote_is_not_prefixed) {
  run_on_all_ranks([](bootstrap& ranks, int rank) {
    const auto first = gather_votes(ranks, no_value{}, failure_on(rank, 2, ISTHMUS_ERROR_SYSTEM));
    const std::optional<error> own = make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE, refusal_text(first));
    const auto second = gather_votes(ranks, no_value{}, own);
    EXPECT_EQ(refusal_text(second), "rank 2: no device here");
    const auto failure = test::error_of([&] { check_votes(rank, second, std::nullopt, "creating failed"); });
    EXPECT_STREQ(failure.message, "creating failed: rank 2: no device here");
    EXPECT_TRUE(std::ranges::equal(failure.failed_ranks(), std::array{2}));
  });
}

TEST(agreement, failed_rank_is_named_on_all_ranks) {
  run_on_all_ranks([](bootstrap& ranks, int rank) {
    const auto own = failure_on(rank, 1, ISTHMUS_ERROR_SYSTEM);
    const auto failure = test::error_of([&] { agree(ranks, no_value{}, own, "creating failed"); });
    EXPECT_EQ(failure.status, rank == 1 ? ISTHMUS_ERROR_SYSTEM : ISTHMUS_ERROR_REMOTE);
    EXPECT_TRUE(std::ranges::equal(failure.failed_ranks(), std::array{1})) << failure.message;
  });
}

TEST(agreement, unsupported_can_be_ignored) {
  run_on_all_ranks([](bootstrap& ranks, int rank) {
    const auto unsupported = failure_on(rank, 0, ISTHMUS_ERROR_UNSUPPORTED);
    const auto all = gather_votes(ranks, rank, unsupported);
    EXPECT_NO_THROW(check_votes(rank, all, unsupported, "creating failed", ISTHMUS_ERROR_REMOTE,
                                ISTHMUS_ERROR_UNSUPPORTED));
    EXPECT_EQ(refusal_text(all), "rank 0: no device here");
    // All ranks throw a real failure of another rank, including the rank that only reports unsupported.
    auto mixed = unsupported;
    if (rank == 2) mixed = failure_on(2, 2, ISTHMUS_ERROR_BACKEND);
    const auto both = gather_votes(ranks, rank, mixed);
    const auto failure = test::error_of([&] {
      check_votes(rank, both, mixed, "creating failed", ISTHMUS_ERROR_REMOTE, ISTHMUS_ERROR_UNSUPPORTED);
    });
    EXPECT_EQ(failure.status, rank == 2 ? ISTHMUS_ERROR_BACKEND : ISTHMUS_ERROR_REMOTE);
  });
}

TEST(agreement, long_texts_are_truncated_and_terminated) {
  refusal own_refusal;
  own_refusal.refuse(ISTHMUS_ERROR_SYSTEM, std::string(1000, 'x'), std::string(1000, 'y'));
  EXPECT_EQ(std::string(own_refusal.text), std::string(sizeof own_refusal.text - 1, 'x'));
  EXPECT_EQ(std::string(own_refusal.hint), std::string(sizeof own_refusal.hint - 1, 'y'));
}

// A backend's view of the core: an allgather and a function that reports failures.
struct backend_stub {
  bootstrap* ranks;
  std::string reported;
  std::int64_t native_code = 0;
  std::vector<int> failed_ranks;

  static isthmus_status report(void* runtime, const int* ranks, std::size_t n, isthmus_status status,
                               std::int64_t code, const char*, const char* hint, const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    auto& self = *static_cast<backend_stub*>(runtime);
    self.reported = std::string(text) + " | " + (hint == nullptr ? "" : hint);
    self.native_code = code;
    self.failed_ranks.assign(ranks, ranks + n);
    return status;
  }

  isthmus_backend_context context(int rank) {
    isthmus_backend_context context{};
    context.runtime = this;
    context.rank = rank;
    context.size = size;
    context.allgather = [](void* runtime, const void* send_buffer, void* all, std::size_t bytes) {
      static_cast<backend_stub*>(runtime)->ranks->allgather({static_cast<const std::byte*>(send_buffer), bytes},
                                                            {static_cast<std::byte*>(all), bytes * size});
      return ISTHMUS_SUCCESS;
    };
    context.fail_with_ranks = report;
    return context;
  }
};

TEST(agreement, backends_report_the_same_on_every_rank) {
  run_on_all_ranks([](bootstrap& ranks, int rank) {
    backend_stub own{&ranks, "", 0, {}};
    const isthmus_backend_context context = own.context(rank);
    vote<int> own_vote;
    own_vote.value = 5 * rank;
    votes<int> all;
    EXPECT_EQ(agree(context, ISTHMUS_HERE, own_vote, all), ISTHMUS_SUCCESS);
    EXPECT_EQ(all[2].value, 10);
    EXPECT_EQ(own.reported, "");
    if (rank == 2) own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, "no library", "install it", 7);
    EXPECT_EQ(agree(context, ISTHMUS_HERE, own_vote, all), ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_EQ(own.reported, "rank 2: no library | install it");
    EXPECT_EQ(own.native_code, 7);
    EXPECT_EQ(own.failed_ranks, std::vector{2});
  });
}

}  // namespace
