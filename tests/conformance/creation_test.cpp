// Inconsistent ranks and invalid configurations: creation fails on all ranks, and the error names the
// rank or the line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "misuse.hpp"

namespace misuse_test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class text_file {
 public:
  explicit text_file(const std::string& text) {
    static int number = 0;
    m_path = fmt::format("{}/isthmus-misuse-{}-{}.toml", P_tmpdir, getpid(), number++);
    std::ofstream(m_path) << text;
  }
  ~text_file() { std::remove(m_path.c_str()); }
  text_file(const text_file&) = delete;
  text_file& operator=(const text_file&) = delete;
  const char* path() const { return m_path.c_str(); }

 private:
  std::string m_path;
};

// Creates a communicator with a unique id. `arguments` has the arguments of each rank.
struct creation {
  int rank, size;
  const char* config;
};
std::vector<outcome> create_ranks(const std::vector<creation>& arguments, double timeout_s) {
  isthmus_unique_id id;
  EXPECT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS) << last_message();
  return run_on_ranks(static_cast<int>(arguments.size()), [&](int i) {
    const auto options = make_options(timeout_s, arguments[i].config);
    isthmus_communicator communicator = nullptr;
    const isthmus_status status =
        isthmus_communicator_create(&id, arguments[i].rank, arguments[i].size, &options, &communicator);
    EXPECT_EQ(communicator == nullptr, status != ISTHMUS_SUCCESS);
    isthmus_communicator_destroy(communicator);
    return status;
  });
}

TEST(creation, different_rules_are_reported_with_ranks) {
  const text_file plain("");
  const text_file other("[[rule]]\ncollective = \"allreduce\"\nbytes = \"0..12345\"\nuse = \"shm\"\n");
  const auto outcomes = create_ranks({{0, 3, plain.path()}, {1, 3, plain.path()}, {2, 3, other.path()}}, 20);
  for (const outcome& result : outcomes) {
    EXPECT_EQ(result.status, ISTHMUS_ERROR_MISMATCH) << result.message;
    EXPECT_THAT(result.message, HasSubstr("12345"));
    EXPECT_THAT(result.message, AllOf(HasSubstr("0"), HasSubstr("2")));
  }
}

TEST(creation, different_sizes_fail) {
  const auto outcomes = create_ranks({{0, 2, nullptr}, {1, 3, nullptr}}, 3);
  for (const outcome& result : outcomes)
    EXPECT_THAT(result.status, AnyOf(ISTHMUS_ERROR_MISMATCH, ISTHMUS_ERROR_TIMEOUT, ISTHMUS_ERROR_REMOTE))
        << result.message;
}

TEST(creation, duplicate_ranks_fail) {
  const auto outcomes = create_ranks({{0, 2, nullptr}, {0, 2, nullptr}}, 3);
  for (const outcome& result : outcomes) EXPECT_NE(result.status, ISTHMUS_SUCCESS);
}

TEST(creation, missing_rank_is_named) {
  const auto outcomes = create_ranks({{0, 3, nullptr}, {1, 3, nullptr}}, 1);
  for (const outcome& result : outcomes) {
    EXPECT_EQ(result.status, ISTHMUS_ERROR_TIMEOUT) << result.message;
    EXPECT_THAT(result.message, HasSubstr("2"));
  }
}

TEST(creation, invalid_arguments_are_named) {
  isthmus_unique_id id;
  ASSERT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS);
  isthmus_communicator communicator = nullptr;
  const auto options = make_options(2);
  EXPECT_EQ(isthmus_communicator_create(&id, 3, 2, &options, &communicator), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), AllOf(HasSubstr("rank"), HasSubstr("3")));
  EXPECT_EQ(isthmus_communicator_create(&id, 0, 0, &options, &communicator), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), HasSubstr("size"));
  EXPECT_EQ(isthmus_communicator_create(nullptr, 0, 1, &options, &communicator),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_communicator_create(&id, 0, 1, &options, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  isthmus_communicator_options no_size{};
  no_size.timeout_s = 2;
  EXPECT_EQ(isthmus_communicator_create(&id, 0, 1, &no_size, &communicator), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), HasSubstr("struct_bytes"));
  EXPECT_EQ(communicator, nullptr);
  isthmus_unique_id garbage;
  std::memset(&garbage, 0x5a, sizeof garbage);
  EXPECT_NE(isthmus_communicator_create(&garbage, 0, 1, &options, &communicator), ISTHMUS_SUCCESS);
  EXPECT_EQ(communicator, nullptr);
}

TEST(creation, configuration_errors_name_file_and_line) {
  const isthmus_device device{};
  isthmus_communicator communicator = nullptr;
  auto options = make_options(5, "/nonexistent/isthmus.toml");
  EXPECT_EQ(isthmus_communicator_create_all(1, &device, &options, &communicator), ISTHMUS_ERROR_CONFIG);
  EXPECT_THAT(last_message(), HasSubstr("/nonexistent/isthmus.toml"));
  const text_file unknown("\n[[rule]]\ncollective = \"allredcue\"\nuse = \"shm\"\n");
  options.config_path = unknown.path();
  EXPECT_EQ(isthmus_communicator_create_all(1, &device, &options, &communicator), ISTHMUS_ERROR_CONFIG);
  EXPECT_THAT(last_message(), AllOf(HasSubstr(std::string(unknown.path()) + ":3:"), HasSubstr("allredcue"),
                                    HasSubstr("allreduce")));
  EXPECT_EQ(communicator, nullptr);
}

TEST(creation, unknown_platform_is_rejected) {
  const isthmus_device device{static_cast<isthmus_platform>(42), 0};
  isthmus_communicator communicator = nullptr;
  const auto options = make_options(5);
  EXPECT_EQ(isthmus_communicator_create_all(1, &device, &options, &communicator),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), AllOf(HasSubstr("platform"), HasSubstr("42")));
}

}  // namespace
}  // namespace misuse_test
