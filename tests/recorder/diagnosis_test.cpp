// Who is named, for states that are hard to reach by faults in a running job.
#include "recorder/diagnosis.hpp"

#include <gtest/gtest.h>

namespace {

using namespace isthmus;
using namespace isthmus::recorder;

recorded_call make_call(isthmus_collective collective, std::uint64_t number, bool has_ended, std::uint64_t count = 4) {
  recorded_call call;
  call.number = number;
  call.signature.collective = static_cast<std::uint8_t>(collective);
  call.signature.datatype = ISTHMUS_FLOAT32;
  call.count = count;
  call.path = "host";
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

// `number` collectives, the last of them ended or not.
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

TEST(diagnosis, nobody_waits) {
  const auto found = diagnose({make_rank(0, 2, 3, true), make_rank(1, 2, 3, true)});
  EXPECT_EQ(found.kind, diagnosis_kind::none) << found.sentence;
  EXPECT_TRUE(found.responsible_ranks.empty());
}

TEST(diagnosis, all_have_come) {
  auto late = make_rank(1, 2, 3, false);
  late.calls.back().begin_age_s = 1;
  const auto found = diagnose({make_rank(0, 2, 3, false), late});
  EXPECT_EQ(found.kind, diagnosis_kind::slow);
  EXPECT_EQ(found.responsible_ranks, rank_list{1}) << found.sentence;
}

TEST(diagnosis, of_two_that_disagree_both_are_named) {
  auto other = make_rank(1, 2, 2, true);
  other.calls.push_back(make_call(ISTHMUS_BARRIER, 3, false));
  const auto found = diagnose({make_rank(0, 2, 3, false), other});
  EXPECT_EQ(found.kind, diagnosis_kind::mismatch);
  EXPECT_EQ(found.responsible_ranks.size(), 2u) << found.sentence;
}

TEST(diagnosis, paths_that_differ_are_told) {
  auto other = make_rank(2, 3, 3, false);
  other.calls.back().path = "mpi";
  const auto found = diagnose({make_rank(0, 3, 3, false), make_rank(1, 3, 3, false), other});
  EXPECT_EQ(found.kind, diagnosis_kind::mismatch);
  EXPECT_EQ(found.responsible_ranks, rank_list{2});
  EXPECT_NE(found.sentence.find("by mpi where"), std::string::npos) << found.sentence;
}

// Of calls on streams nobody knows whether they have ended, and ranks that made one more are ahead for ever.
TEST(diagnosis, an_old_disagreement_explains_who_is_a_call_ahead) {
  auto other = make_rank(2, 3, 5, false);
  other.calls[0].signature.collective = ISTHMUS_BROADCAST;
  const auto found = diagnose({make_rank(0, 3, 4, false), make_rank(1, 3, 4, false), other});
  EXPECT_EQ(found.kind, diagnosis_kind::mismatch);
  EXPECT_EQ(found.responsible_ranks, rank_list{2});
  EXPECT_NE(found.sentence.find("; now ranks 0 (pid 100) and 1 (pid 101) still in allreduce #4"),
            std::string::npos)
      << found.sentence;
}

TEST(diagnosis, an_old_disagreement_does_not_hide_who_is_gone) {
  auto other = make_rank(1, 3, 3, true);
  other.calls[0].count = 7;
  other.process = process_state::exited;
  const auto found = diagnose({make_rank(0, 3, 4, false), other, make_rank(2, 3, 4, false)});
  EXPECT_EQ(found.kind, diagnosis_kind::exited);
  EXPECT_EQ(found.responsible_ranks, rank_list{1});
  EXPECT_NE(found.sentence.find("before, rank 1 (pid 101) called allreduce #1 (float32 x 7"), std::string::npos)
      << found.sentence;
}

TEST(diagnosis, of_a_dead_job_those_who_knew_of_a_failure_are_no_cause) {
  auto first = make_rank(0, 2, 3, false), second = make_rank(1, 2, 2, true);
  first.process = second.process = process_state::exited;
  first.failure = "rank 0 waited";
  EXPECT_EQ(diagnose({first, second}).responsible_ranks, rank_list{1});
}

TEST(diagnosis, a_rank_without_a_file_has_left) {
  const auto found = diagnose({make_rank(0, 3, 3, false), make_rank(2, 3, 3, false)});
  EXPECT_EQ(found.kind, diagnosis_kind::destroyed);
  EXPECT_EQ(found.responsible_ranks, rank_list{1});
}

TEST(diagnosis, ranks_of_other_machines_are_not_judged) {
  auto first = make_rank(0, 3, 3, false), second = make_rank(2, 3, 3, false);
  first.pids[1] = second.pids[1] = 0;
  const auto found = diagnose({first, second});
  EXPECT_EQ(found.kind, diagnosis_kind::remote);
  EXPECT_NE(found.sentence.find("rank 1 can't be seen"), std::string::npos) << found.sentence;
}

TEST(diagnosis, messages_lead_to_the_rank_that_waits_for_nobody) {
  auto first = make_rank(0, 3, 1, true), second = make_rank(1, 3, 1, true);
  first.calls.push_back(make_message(ISTHMUS_RECV, 1));
  second.calls.push_back(make_message(ISTHMUS_RECV, 2));
  const auto found = diagnose({first, second, make_rank(2, 3, 1, true)});
  EXPECT_EQ(found.kind, diagnosis_kind::missing);
  EXPECT_EQ(found.responsible_ranks, rank_list{2}) << found.sentence;
  auto third = make_rank(2, 3, 1, true);
  third.calls.push_back(make_message(ISTHMUS_RECV, 0));
  EXPECT_NE(diagnose({first, second, third}).sentence.find("wait for each other"), std::string::npos);
}

}  // namespace
