// Diagnoses of states that are hard to reach with faults in a running job.
#include "recorder/diagnosis.hpp"

#include <gtest/gtest.h>

namespace {

using namespace isthmus;
using namespace isthmus::recorder;

recorded_call make_call(isthmus_collective collective, std::uint64_t number, bool has_ended,
                        std::uint64_t count = 4) {
  recorded_call call;
  call.number = number;
  call.signature.collective = static_cast<std::uint8_t>(collective);
  call.signature.datatype = ISTHMUS_FLOAT32;
  call.count = count;
  call.path = "shm";
  call.has_ended = has_ended;
  call.state = has_ended ? entry_state::returned : entry_state::inside;
  call.begin_age_s = 3;
  call.end_age_s = has_ended ? 2.5 : 0;
  return call;
}

recorded_call make_message(isthmus_collective collective, int peer) {
  recorded_call call = make_call(collective, 1, false);
  call.signature.root = peer;
  return call;
}

// A rank with `number` collectives; `has_ended` says whether the last one is complete.
recorded_rank make_rank(int rank, int size, std::uint64_t number, bool has_ended) {
  recorded_rank record;
  record.rank = rank;
  record.size = size;
  record.pid = 100 + rank;
  for (int i = 0; i < size; ++i) record.pids.push_back(100 + i);
  for (std::uint64_t i = 1; i <= number; ++i)
    record.calls.push_back(make_call(ISTHMUS_ALLREDUCE, i, i < number || has_ended));
  return record;
}

using rank_list = std::vector<int>;

TEST(diagnosis, completed_calls_are_no_problem) {
  const auto result = diagnose({make_rank(0, 2, 3, true), make_rank(1, 2, 3, true)});
  EXPECT_EQ(result.kind, diagnosis_kind::none) << result.sentence;
  EXPECT_TRUE(result.responsible_ranks.empty());
}

TEST(diagnosis, names_last_rank_if_all_have_entered) {
  auto late = make_rank(1, 2, 3, false);
  late.calls.back().begin_age_s = 1;
  const auto result = diagnose({make_rank(0, 2, 3, false), late});
  EXPECT_EQ(result.kind, diagnosis_kind::slow);
  EXPECT_EQ(result.responsible_ranks, rank_list{1}) << result.sentence;
}

TEST(diagnosis, names_both_of_two_mismatched_ranks) {
  auto other = make_rank(1, 2, 2, true);
  other.calls.push_back(make_call(ISTHMUS_BARRIER, 3, false));
  const auto result = diagnose({make_rank(0, 2, 3, false), other});
  EXPECT_EQ(result.kind, diagnosis_kind::mismatch);
  EXPECT_EQ(result.responsible_ranks.size(), 2u) << result.sentence;
}

TEST(diagnosis, different_paths_are_a_mismatch) {
  auto other = make_rank(2, 3, 3, false);
  other.calls.back().path = "mpi";
  const auto result = diagnose({make_rank(0, 3, 3, false), make_rank(1, 3, 3, false), other});
  EXPECT_EQ(result.kind, diagnosis_kind::mismatch);
  EXPECT_EQ(result.responsible_ranks, rank_list{2});
  EXPECT_NE(result.sentence.find("by mpi, but"), std::string::npos) << result.sentence;
}

// It is unknown whether calls on streams are complete, and a rank that made one more call stays one call ahead.
TEST(diagnosis, earlier_mismatch_explains_rank_that_is_ahead) {
  auto other = make_rank(2, 3, 5, false);
  other.calls[0].signature.collective = ISTHMUS_BROADCAST;
  const auto result = diagnose({make_rank(0, 3, 4, false), make_rank(1, 3, 4, false), other});
  EXPECT_EQ(result.kind, diagnosis_kind::mismatch);
  EXPECT_EQ(result.responsible_ranks, rank_list{2});
  EXPECT_NE(result.sentence.find("; now ranks 0 (pid 100) and 1 (pid 101) are still in allreduce #4"),
            std::string::npos)
      << result.sentence;
}

TEST(diagnosis, earlier_mismatch_does_not_hide_exited_rank) {
  auto other = make_rank(1, 3, 3, true);
  other.calls[0].count = 7;
  other.process = process_state::exited;
  const auto result = diagnose({make_rank(0, 3, 4, false), other, make_rank(2, 3, 4, false)});
  EXPECT_EQ(result.kind, diagnosis_kind::exited);
  EXPECT_EQ(result.responsible_ranks, rank_list{1});
  EXPECT_NE(result.sentence.find("earlier, rank 1 (pid 101) called allreduce #1 (float32 x 7"),
            std::string::npos)
      << result.sentence;
}

TEST(diagnosis, rank_with_reported_failure_is_not_the_cause) {
  auto first = make_rank(0, 2, 3, false), second = make_rank(1, 2, 2, true);
  first.process = second.process = process_state::exited;
  first.failure = "rank 0 waited";
  EXPECT_EQ(diagnose({first, second}).responsible_ranks, rank_list{1});
}

// The survivor reported a timeout and exited before the other one looked for the cause.
TEST(diagnosis, names_stopped_rank_after_a_survivor_exited) {
  auto survivor = make_rank(0, 3, 3, false), stopped = make_rank(2, 3, 2, true);
  survivor.process = process_state::exited;
  survivor.failure = "rank 0 waited";
  stopped.process = process_state::stopped;
  const auto result = diagnose({survivor, make_rank(1, 3, 3, false), stopped});
  EXPECT_EQ(result.kind, diagnosis_kind::stopped) << result.sentence;
  EXPECT_EQ(result.responsible_ranks, rank_list{2});
}

TEST(diagnosis, names_missing_rank_after_a_survivor_exited) {
  auto survivor = make_rank(0, 3, 3, false), late = make_rank(2, 3, 2, true);
  survivor.process = process_state::exited;
  survivor.failure = "rank 0 waited";
  const auto result = diagnose({survivor, make_rank(1, 3, 3, false), late});
  EXPECT_EQ(result.kind, diagnosis_kind::missing) << result.sentence;
  EXPECT_EQ(result.responsible_ranks, rank_list{2});
  const auto failed_alone = diagnose({survivor, make_rank(1, 3, 3, false), make_rank(2, 3, 3, false)});
  EXPECT_EQ(failed_alone.kind, diagnosis_kind::exited) << failed_alone.sentence;
  EXPECT_EQ(failed_alone.responsible_ranks, rank_list{0});
}

TEST(diagnosis, names_rank_at_the_end_of_a_chain_of_waits) {
  auto first = make_rank(0, 3, 3, false), second = make_rank(1, 3, 3, false);
  auto last = make_rank(2, 3, 3, false);
  first.calls.back().begin_age_s = 4;
  second.calls.back().begin_age_s = 1;  // arrived last, but waits for another rank
  first.awaited_rank = 1;
  second.awaited_rank = 2;
  const auto result = diagnose({first, second, last});
  EXPECT_EQ(result.kind, diagnosis_kind::slow) << result.sentence;
  EXPECT_TRUE(result.is_awaited);
  EXPECT_EQ(result.responsible_ranks, rank_list{2}) << result.sentence;
  last.awaited_rank = 0;
  const auto cycle = diagnose({first, second, last});
  EXPECT_FALSE(cycle.is_awaited);
  EXPECT_NE(cycle.sentence.find("wait for each other"), std::string::npos) << cycle.sentence;
}

TEST(diagnosis, rank_without_file_destroyed_communicator) {
  const auto result = diagnose({make_rank(0, 3, 3, false), make_rank(2, 3, 3, false)});
  EXPECT_EQ(result.kind, diagnosis_kind::destroyed);
  EXPECT_EQ(result.responsible_ranks, rank_list{1});
}

TEST(diagnosis, does_not_blame_ranks_of_other_machines) {
  auto first = make_rank(0, 3, 3, false), second = make_rank(2, 3, 3, false);
  first.pids[1] = second.pids[1] = 0;
  const auto result = diagnose({first, second});
  EXPECT_EQ(result.kind, diagnosis_kind::remote);
  EXPECT_NE(result.sentence.find("rank 1 cannot be seen"), std::string::npos) << result.sentence;
}

TEST(diagnosis, follows_message_chain_to_its_end) {
  auto first = make_rank(0, 3, 1, true), second = make_rank(1, 3, 1, true);
  first.calls.push_back(make_message(ISTHMUS_RECV, 1));
  second.calls.push_back(make_message(ISTHMUS_RECV, 2));
  const auto result = diagnose({first, second, make_rank(2, 3, 1, true)});
  EXPECT_EQ(result.kind, diagnosis_kind::missing);
  EXPECT_EQ(result.responsible_ranks, rank_list{2}) << result.sentence;
  auto third = make_rank(2, 3, 1, true);
  third.calls.push_back(make_message(ISTHMUS_RECV, 0));
  const auto cycle = diagnose({first, second, third});
  EXPECT_NE(cycle.sentence.find("wait for each other"), std::string::npos);
  EXPECT_EQ(cycle.responsible_ranks, (rank_list{0, 1})) << cycle.sentence;
}

}  // namespace
