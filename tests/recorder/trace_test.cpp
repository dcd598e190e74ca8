// Traces: contents, stragglers, clocks of two machines and invalid files.
#include "recorder/trace.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "ranks.hpp"
#include "recorder/trace_folder.hpp"

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
  const auto summary = json::parse(summary_of(read_traces(m_folder)));
  const auto& rank = summary["communicators"][0]["ranks"][0];
  EXPECT_EQ(rank["calls"], 1100);
  EXPECT_EQ(rank["overwritten"], 1100 - 1024);
  EXPECT_EQ(rank["state"], "ended");
}

TEST_F(traces, contain_selection_reason_and_request_time) {
  const membership ranks = ranks_of_this_process(1);
  const auto recorder = recorder_of(ranks, 0);
  const isthmus_operation operation = allreduce_of(4);
  const request_info requested{recorder->trace_ticks(), recorder->reason_index("a rule")};
  EXPECT_EQ(requested.reason, recorder->reason_index("a rule"));
  pause();
  recorder->begin(0, &operation, nullptr, 1, &requested);
  recorder->end(true);
  const auto record = read_file(file_of(ranks, 0));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->reasons.at(record->calls[0].reason), "a rule");
  EXPECT_GE(record->calls[0].begin_ns - record->calls[0].requested_ns, 19'000'000u);
  EXPECT_GE(record->calls[0].end_ns, record->calls[0].begin_ns);
}

TEST_F(traces, identify_the_last_rank) {
  const membership ranks = ranks_of_this_process(2);
  const auto first = recorder_of(ranks, 0), second = recorder_of(ranks, 1);
  const isthmus_operation operation = allreduce_of(4);
  first->begin(0, &operation, nullptr, 1);
  pause();
  second->begin(0, &operation, nullptr, 1);
  first->end(true);
  second->end(true);
  record_call(*second, 8);  // the first rank does not make this call
  const trace merged = read_traces(m_folder);
  const auto summary = json::parse(summary_of(merged))["communicators"][0];
  EXPECT_EQ(summary["matched"], 1);
  EXPECT_EQ(summary["ranks"][1]["last_arrivals"], 1);
  EXPECT_GE(summary["ranks"][1]["others_waited_us"], 19'000);
  EXPECT_EQ(summary["ranks"][1]["others_waited_us"], summary["ranks"][0]["waited_us"]);
  EXPECT_EQ(summary["ranks"][1]["waited_us"], 0);
  EXPECT_EQ(summary["worst"][0]["last"], 1);
  EXPECT_EQ(summary["state"], "running");

  const std::string path = m_folder + "/timeline.json";
  write_timeline(merged, path);
  std::ifstream file(path);
  const auto events = json::parse(file)["traceEvents"];
  EXPECT_EQ(std::count_if(events.begin(), events.end(), [](auto& each) { return each["ph"] == "X"; }), 3);
  EXPECT_EQ(events.back()["args"]["call"], "allreduce #2 (float32 x 8, sum)");
  EXPECT_EQ(events.back()["args"]["bytes"], 32);
  EXPECT_EQ(events.back()["args"]["path"], "shm");
  EXPECT_THROW(write_timeline(merged, path), error) << "existing files are not overwritten";
}

// Changes the file as if another machine had written it, whose clocks are ahead by these values.
void move_to_another_machine(const std::string& path, std::int64_t monotonic_ns, std::int64_t realtime_ns) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (int i = 0; i < 3; ++i) {
    const auto offset = static_cast<std::streamoff>(offsetof(header, clock_samples) +
                                                    sizeof(clock_sample) * static_cast<std::size_t>(i));
    clock_sample read{};
    file.seekg(offset).read(reinterpret_cast<char*>(&read), sizeof read);
    read.monotonic_ns += static_cast<std::uint64_t>(monotonic_ns);
    read.realtime_ns += static_cast<std::uint64_t>(realtime_ns);
    file.seekp(offset).write(reinterpret_cast<const char*>(&read), sizeof read);
  }
  file.seekp(offsetof(header, boot)).write("elsewhere", 10);
}

TEST_F(traces, of_two_machines_are_aligned_by_calls) {
  const membership ranks = ranks_of_this_process(2);
  {
    const auto first = recorder_of(ranks, 0), second = recorder_of(ranks, 1);
    const isthmus_operation operation = allreduce_of(4);
    for (int i = 0; i < 50; ++i) {
      flight_recorder& early = i % 2 == 0 ? *first : *second;
      flight_recorder& late = i % 2 == 0 ? *second : *first;
      early.begin(0, &operation, nullptr, 1);
      late.begin(0, &operation, nullptr, 1);
      late.end(true);
      early.end(true);
    }
    first->begin(0, &operation, nullptr, 1);
    pause();
    second->begin(0, &operation, nullptr, 1);
    second->end(true);
    first->end(true);
  }
  constexpr std::int64_t hour_ns = 3'600'000'000'000, second_ns = 1'000'000'000;
  move_to_another_machine(file_of(ranks, 1), hour_ns, second_ns);
  const trace merged = read_traces(m_folder);
  ASSERT_EQ(merged.machines.size(), 2u);
  const auto& other = merged.machines[1];
  EXPECT_EQ(other.alignment_source, "the ends of collectives");
  EXPECT_LE(std::abs(other.offset_ns + hour_ns), other.uncertainty_ns);
  EXPECT_LT(other.uncertainty_ns, 20'000'000);
  const matched_call& last = merged.communicators[0].calls.back();
  EXPECT_EQ(last.last, 1u);
  EXPECT_GE(last.delay_ns, 19'000'000 - other.uncertainty_ns);
}

std::string refusal(const std::string& folder) {
  try {
    read_traces(folder);
  } catch (const error& failure) {
    return failure.what();
  }
  return "";
}

TEST_F(traces, that_are_unreadable_are_reported) {
  EXPECT_NE(refusal(m_folder).find("contains no trace"), std::string::npos);
  EXPECT_NE(refusal(m_folder + "/nowhere").find("No such file"), std::string::npos);
  const membership ranks = ranks_of_this_process(1);
  const std::string path = file_of(ranks, 0);
  const auto refusal_of_contents = [&](const std::string& bytes) {
    std::ofstream(path) << bytes;
    return refusal(m_folder);
  };
  EXPECT_NE(refusal_of_contents("").find("it is empty"), std::string::npos);
  EXPECT_NE(refusal_of_contents("abc").find("truncated: 3 bytes"), std::string::npos);
  EXPECT_NE(refusal_of_contents(std::string(9000, 'x')).find("not written by a flight recorder"),
            std::string::npos);
  EXPECT_NE(refusal_of_contents("ITRECO1" + std::string(9000, '\0')).find("layout 1, this version reads 2"),
            std::string::npos);
  std::filesystem::remove(path);
  {
    const auto recorder = recorder_of(ranks, 0);
  }
  const auto full_size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, full_size - 64);
  EXPECT_NE(refusal(m_folder).find(fmt::format("truncated: {} of {} bytes", full_size - 64, full_size)),
            std::string::npos);
  std::filesystem::resize_file(path, 100);
  EXPECT_NE(refusal(m_folder).find("truncated: 100 bytes"), std::string::npos);
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/zero", path);
  EXPECT_NE(refusal(m_folder).find("symbolic links"), std::string::npos) << refusal(m_folder);
  std::filesystem::remove(path);
  // If another trace is readable, they are only reported.
  const auto recorder = recorder_of(ranks, 0);
  std::ofstream(m_folder + "/other.trace") << "abc";
  EXPECT_EQ(read_traces(m_folder).skipped_files.size(), 1u);
}

TEST_F(traces, that_are_copied_or_damaged_do_no_harm) {
  const membership ranks = ranks_of_this_process(2);
  for (const int rank : {0, 1}) {
    const auto recorder = recorder_of(ranks, rank, 256);
    for (std::uint64_t i = 1; i <= 20; ++i) record_call(*recorder, i);
  }
  const std::string path = file_of(ranks, 1), copy = m_folder + "/copy.trace";
  std::filesystem::copy_file(path, copy);
  EXPECT_EQ(read_traces(m_folder).skipped_files.size(), 1u);
  std::mt19937_64 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same bytes every time
  for (int i = 0; i < 300; ++i) {
    std::filesystem::copy_file(copy, path, std::filesystem::copy_options::overwrite_existing);
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      for (int byte = 0; byte < 4; ++byte) {
        const auto offset = random() % (i % 2 == 0 ? 256 : sizeof(header) + 14'000);
        file.seekp(static_cast<std::streamoff>(offset)).put(static_cast<char>(random()));
      }
    }
    const trace merged = read_traces(m_folder);
    EXPECT_FALSE(summary_of(merged).empty());
    const std::string timeline = m_folder + "/timeline.json";
    std::filesystem::remove(timeline);
    write_timeline(merged, timeline);
  }
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
