// Traces: files, the diagnosis of their end, and settings. tests/python/test_traces.py covers merging.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "ranks.hpp"
#include "recorder/diagnosis.hpp"

namespace {

using namespace isthmus;
using namespace isthmus::recorder;
using nlohmann::json;

class traces : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "isthmus-trace-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    m_folder = name;
  }
  void TearDown() override {
    ::unsetenv("ISTHMUS_TRACE");
    ::unsetenv("ISTHMUS_TRACE_CALLS");
    std::filesystem::remove_all(m_folder);
  }

  std::unique_ptr<flight_recorder> recorder_of(membership ranks, int rank, std::uint64_t entries = 1024) const {
    ranks.rank = rank;
    auto new_recorder = std::make_unique<flight_recorder>(ranks, 10, trace_options{m_folder, entries});
    new_recorder->add_backend(0, "shm", true);
    return new_recorder;
  }
  std::string file_of(const membership& ranks, int rank) const {
    return trace_path(m_folder, ranks.token, rank);
  }

  std::string m_folder;
};

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

TEST_F(traces, keep_more_calls_than_the_ring_and_persist) {
  const membership ranks = ranks_of_this_process(1);
  {
    const auto recorder = recorder_of(ranks, 0);
    for (std::uint64_t i = 1; i <= 1100; ++i) record_call(*recorder, i);
    EXPECT_EQ(read_file(path_of_file(ranks.token, 0))->calls.size(), ring_entries);
  }
  EXPECT_FALSE(std::filesystem::exists(path_of_file(ranks.token, 0)));
  struct stat status{};
  ASSERT_EQ(::stat(file_of(ranks, 0).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const auto record = read_file(file_of(ranks, 0));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->call_count, 1100u);
  EXPECT_EQ(record->calls.size(), 1024u);
  EXPECT_TRUE(record->is_closed);
}

TEST_F(traces, store_each_selection_reason_once) {
  const membership ranks = ranks_of_this_process(1);
  const auto recorder = recorder_of(ranks, 0);
  EXPECT_NE(recorder->trace_ticks(), 0u);
  const std::uint32_t reason = recorder->reason_index("a rule");
  EXPECT_NE(reason, 0u);
  EXPECT_EQ(recorder->reason_index("another rule"), reason + 1);
  EXPECT_EQ(recorder->reason_index("a rule"), reason);
}

TEST_F(traces, are_diagnosed_at_their_end) {
  const membership ranks = ranks_of_this_process(2);
  const auto first = recorder_of(ranks, 0), second = recorder_of(ranks, 1);
  const isthmus_operation operation = allreduce_of(4);
  first->begin(0, &operation, nullptr, 1);
  pause();
  std::ofstream(m_folder + "/other.trace") << "abc";
  std::filesystem::copy_file(file_of(ranks, 1), m_folder + "/copy.trace");
  const auto jobs = json::parse(report(0, "", m_folder))["jobs"];
  ASSERT_EQ(jobs.size(), 1u);
  const auto& communicator = jobs[0]["communicators"][0];
  EXPECT_EQ(communicator["ranks"].size(), 2u);
  EXPECT_EQ(communicator["diagnosis"], "missing");
  EXPECT_EQ(communicator["responsible_ranks"], json({1}));
  EXPECT_NE(communicator["sentence"].get<std::string>().find("has not entered allreduce #1"),
            std::string::npos);
  // The trace ends with the call, so its age does not include the pause.
  EXPECT_LT(communicator["waiting_s"], 0.02);
  EXPECT_THROW(report(0, "", m_folder + "/nowhere"), error);
}

TEST_F(traces, never_replace_existing_files) {
  const membership ranks = ranks_of_this_process(1);
  const std::string target = m_folder + "/precious";
  std::ofstream(target) << "data";
  std::filesystem::create_symlink(target, file_of(ranks, 0));
  const auto recorder = recorder_of(ranks, 0);  // warns
  record_call(*recorder, 1);
  EXPECT_EQ(recorder->trace_ticks(), 0u);
  EXPECT_EQ(std::filesystem::file_size(target), 4u);
}

TEST_F(traces, read_settings_from_environment) {
  EXPECT_FALSE(read_trace_options());
  ::setenv("ISTHMUS_TRACE", (m_folder + "/new").c_str(), 1);
  const trace_options options = read_trace_options();
  EXPECT_EQ(options.folder, m_folder + "/new");
  EXPECT_EQ(options.entries, 1u << 17);
  struct stat status{};
  ASSERT_EQ(::stat(options.folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ::setenv("ISTHMUS_TRACE_CALLS", "1000", 1);
  EXPECT_EQ(read_trace_options().entries, 1024u);
  for (const char* wrong : {"0", "many", "1e6", "99999999999"}) {
    ::setenv("ISTHMUS_TRACE_CALLS", wrong, 1);
    EXPECT_THROW(read_trace_options(), error) << wrong;
  }
  ::unsetenv("ISTHMUS_TRACE_CALLS");
  for (const char* wrong : {"/nowhere/at/all", "/dev/null"}) {
    ::setenv("ISTHMUS_TRACE", wrong, 1);
    EXPECT_THROW(read_trace_options(), error) << wrong;
  }
}

}  // namespace
