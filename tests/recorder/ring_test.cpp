// The ring and its file: kept entries, concurrent readers, invalid files and files of dead processes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/process.hpp"
#include "ranks.hpp"
#include "recorder/diagnosis.hpp"
#include "recorder/reader.hpp"

namespace {

using namespace isthmus;
using namespace isthmus::recorder;

TEST(ring, keeps_the_latest_calls) {
  const membership ranks = ranks_of_this_process(2);
  flight_recorder recorder(ranks, 10);
  recorder.add_backend(0, "shm", true);
  for (std::uint64_t i = 1; i <= ring_entries + 44; ++i) record_call(recorder, i);
  const auto record = read_file(path_of_file(ranks.token, 0));
  ASSERT_TRUE(record);
  ASSERT_EQ(record->calls.size(), ring_entries);
  EXPECT_EQ(record->calls.front().number, 45u);
  EXPECT_EQ(record->collectives(), ring_entries + 44);
  EXPECT_EQ(record->calls.back().path, "shm");
  EXPECT_TRUE(record->calls.back().has_ended);
  EXPECT_EQ(record->process, process_state::alive);
  EXPECT_EQ(record->pids, ranks.pid_of);
}

TEST(ring, counts_messages_separately_and_groups_in_order) {
  const membership ranks = ranks_of_this_process(1);
  flight_recorder recorder(ranks, 10);
  recorder.add_backend(0, "shm", true);
  isthmus_operation group[3] = {allreduce_of(1), allreduce_of(2), allreduce_of(3)};
  group[1].collective = ISTHMUS_SEND;
  recorder.begin(0, group, nullptr, 3);
  EXPECT_TRUE(recorder.latest().is_busy);
  EXPECT_EQ(recorder.latest().count, 3u);
  recorder.end(false);
  EXPECT_FALSE(recorder.latest().is_busy);
  recorder.begin(setup_step::split, 0);
  recorder.end(true);
  const auto record = read_file(path_of_file(ranks.token, 0));
  ASSERT_TRUE(record);
  ASSERT_EQ(record->calls.size(), 4u);
  EXPECT_EQ(record->calls[1].number, 1u);
  EXPECT_TRUE(record->calls[1].is_message());
  EXPECT_EQ(record->calls[2].number, 2u);
  EXPECT_EQ(record->calls[2].state, entry_state::failed);
  EXPECT_EQ(record->calls[3].number, 3u);
}

TEST(ring, call_on_a_stream_has_no_known_end) {
  const membership ranks = ranks_of_this_process(1);
  flight_recorder recorder(ranks, 10);
  recorder.add_backend(0, "nccl", false);
  record_call(recorder, 1);
  const auto record = read_file(path_of_file(ranks.token, 0));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->calls[0].state, entry_state::returned);
  EXPECT_FALSE(record->calls[0].has_ended);
}

TEST(ring, reader_sees_only_complete_entries) {
  const membership ranks = ranks_of_this_process(1);
  flight_recorder recorder(ranks, 10);
  recorder.add_backend(0, "shm", true);
  std::atomic<bool> done{false};
  std::jthread writer([&] {
    for (std::uint64_t i = 1; !done; ++i) record_call(recorder, i);
  });
  for (int i = 0; i < 200; ++i) {
    const auto record = read_file(path_of_file(ranks.token, 0));
    ASSERT_TRUE(record);
    for (const recorded_call& each : record->calls) ASSERT_EQ(each.number, each.count);
    const latest_operation latest = recorder.latest();
    ASSERT_EQ(latest.sequence, latest.count);
  }
  done = true;
}

TEST(file, is_private_and_removed_with_the_recorder) {
  const membership ranks = ranks_of_this_process(1);
  const std::string path = path_of_file(ranks.token, 0);
  {
    const flight_recorder recorder(ranks, 10);
    struct stat status{};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

// A name that exists makes the creation of the file fail, like a full /dev/shm.
TEST(file, health_is_visible_without_a_file) {
  const membership ranks = ranks_of_this_process(2);
  const std::string path = path_of_file(ranks.token, 0);
  std::ofstream(path) << "occupied";
  {
    flight_recorder recorder(ranks, 10);
    recorder.add_backend(0, "shm", true);
    record_call(recorder, 1);
    ASSERT_GE(recorder.address().descriptor, 0);
    const auto peer = peer_recording::open(ranks.token, 0, recorder.address());
    ASSERT_TRUE(peer);
    recorder.shared_health()->set_failure(make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE, "broken").info(),
                                          health_record::published);
    EXPECT_STREQ(peer->health()->failure().message, "broken");
    EXPECT_TRUE(peer->has_completed(1));
    EXPECT_FALSE(peer->has_completed(2));
    EXPECT_FALSE(peer_recording::open(ranks.token, 1, recorder.address())) << "the recording of another rank";
  }
  EXPECT_TRUE(std::filesystem::remove(path)) << "the file of another program was removed";
}

TEST(file, peers_see_which_collectives_have_ended) {
  const membership ranks = ranks_of_this_process(1);
  flight_recorder recorder(ranks, 10);
  recorder.add_backend(0, "shm", true);
  const auto peer = peer_recording::open(ranks.token, 0, {});
  ASSERT_TRUE(peer);
  EXPECT_FALSE(peer->has_completed(1));
  const isthmus_operation operation = allreduce_of(1);
  recorder.begin(0, &operation, nullptr, 1);
  EXPECT_FALSE(peer->has_completed(1));
  recorder.end(true);
  EXPECT_TRUE(peer->has_completed(1));
}

// A child shares the memory of its parent. Its copy of the communicator is not the one that peers use.
TEST(file, forked_child_does_not_close_it) {
  const membership ranks = ranks_of_this_process(1);
  flight_recorder recorder(ranks, 10);
  if (const pid_t child = ::fork(); child == 0) {
    recorder.mark_destroyed();
    ::_exit(0);
  } else {
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
  EXPECT_EQ(recorder.shared_health()->closing.load(), health_record::open);
  recorder.mark_destroyed();
  EXPECT_EQ(recorder.shared_health()->closing.load(), health_record::destroyed);
}

TEST(file, invalid_files_are_not_read) {
  const membership ranks = ranks_of_this_process(1);
  const std::string path = path_of_file(ranks.token, 0);
  EXPECT_FALSE(read_file(path));
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{100}, file_layout{}.bytes()}) {
    std::ofstream(path) << std::string(bytes, 'x');
    EXPECT_FALSE(read_file(path)) << bytes;
  }
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/zero", path);
  EXPECT_FALSE(read_file(path));
  std::filesystem::remove(path);
}

template <typename Value>
void replace_in_file(const std::string& path, std::size_t offset, const Value& value) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset)).write(reinterpret_cast<const char*>(&value), sizeof value);
}

TEST(file, process_with_a_reused_pid_has_its_own_job) {
  const membership old_job = ranks_of_this_process(1), new_job = ranks_of_this_process(1);
  const flight_recorder old_recorder(old_job, 10), new_recorder(new_job, 10);
  const auto count_communicators = [](std::int64_t pid, const std::string& job_name) {
    const auto jobs = nlohmann::json::parse(report(pid, job_name, ""))["jobs"];
    return jobs.size() == 1 ? jobs[0]["communicators"].size() : 0;
  };
  EXPECT_EQ(count_communicators(getpid(), ""), 2U);
  const std::uint64_t start = process_start_time(getpid()) - 1;
  replace_in_file(path_of_file(old_job.token, 0), offsetof(header, start), start);
  EXPECT_EQ(count_communicators(getpid(), ""), 1U);
  for (const membership* job : {&old_job, &new_job})
    EXPECT_EQ(count_communicators(0, fmt::format("{:016x}", job->token[0]).substr(0, 8)), 1U);
}

// Leaves the file of a process that has crashed.
void leave_dead_file(const membership& ranks) {
  const std::string path = path_of_file(ranks.token, 0), copy = path + ".kept";
  {
    const flight_recorder recorder(ranks, 10);
    std::filesystem::copy_file(path, copy);
  }
  replace_in_file(copy, offsetof(header, pid), std::int64_t{1} << 30);  // unused
  std::filesystem::rename(copy, path);
}

TEST(file, oldest_files_of_dead_processes_are_removed) {
  std::vector<membership> jobs;
  for (std::size_t i = 0; i < max_stale_files + 2; ++i) {
    jobs.push_back(ranks_of_this_process(1));
    leave_dead_file(jobs.back());
  }
  const membership alive = ranks_of_this_process(1);
  const flight_recorder recorder(alive, 10);
  remove_stale_files();
  const auto exists = [](const membership& ranks) {
    return std::filesystem::exists(path_of_file(ranks.token, 0));
  };
  EXPECT_FALSE(exists(jobs.front()));
  EXPECT_TRUE(exists(alive));
  for (const membership& job : jobs) std::filesystem::remove(path_of_file(job.token, 0));
}

}  // namespace
