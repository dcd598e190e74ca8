#include "selection/grammar.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

selection_rule from(std::initializer_list<std::pair<const char*, const char*>> fields) {
  selection_rule result;
  for (const auto& [field, value] : fields) set_field(result, field, value);
  finish_rule(result);
  result.source = "test";
  return result;
}

const char* everything(const std::string&, const std::string&) { return nullptr; }

constexpr selection_query asked{ISTHMUS_ALLREDUCE, ISTHMUS_FLOAT32, ISTHMUS_PLATFORM_HOST, memory_kind::any, 4, 2, 4096};

// The reason why the only rule loses against `asked`.
std::string reason(std::initializer_list<std::pair<const char*, const char*>> fields, selection_query query = asked) {
  configuration configuration;
  config.rules = {from(fields)};
  const selection_decision result = select(configuration, query, everything, true);
  EXPECT_EQ(result.winner, nullptr);
  EXPECT_EQ(result.reason, "none of 1 rules matches and has an available backend");
  return result.rejections.size() == 1 ? result.rejections[0].reason : "not one rejection";
}

TEST(select, says_which_filter_failed) {
  EXPECT_EQ(reason({{"collective", "reduce"}, {"use", "x"}}), "collective allreduce is not reduce");
  EXPECT_EQ(reason({{"collective", "send"}, {"collective", "reduce"}, {"use", "x"}}),
            "collective allreduce is not one of reduce, send");
  EXPECT_EQ(reason({{"platform", "cuda"}, {"use", "x"}}), "platform host is not cuda");
  EXPECT_EQ(reason({{"datatype", "int8"}, {"datatype", "float64"}, {"use", "x"}}),
            "datatype float32 is not one of int8, float64");
  EXPECT_EQ(reason({{"memory", "symmetric"}, {"use", "x"}}), "the buffers are not both in the symmetric heap");
  EXPECT_EQ(reason({{"ranks", "8"}, {"use", "x"}}), "ranks 4 is not 8");
  EXPECT_EQ(reason({{"ranks", "5.."}, {"use", "x"}}), "ranks 4 is outside 5..");
  EXPECT_EQ(reason({{"ranks", "..3"}, {"use", "x"}}), "ranks 4 is outside 1..3");
  EXPECT_EQ(reason({{"nodes", "1"}, {"use", "x"}}), "nodes 2 is not 1");
  EXPECT_EQ(reason({{"nodes", "3..9"}, {"use", "x"}}), "nodes 2 is outside 3..9");
  EXPECT_EQ(reason({{"bytes", "64K.."}, {"use", "x"}}), "bytes 4096 is outside 65536..");
  EXPECT_EQ(reason({{"bytes", "0..4K"}, {"use", "x"}}), "bytes 4096 is outside 0..4096");
}

TEST(select, a_byte_range_needs_bytes_that_all_ranks_know) {
  selection_query unknown = asked;
  unknown.bytes = std::nullopt;
  EXPECT_EQ(reason({{"bytes", "0.."}, {"use", "x"}}, unknown),
            "bytes are not known to all ranks, the rule wants 0..");
}

TEST(select, an_open_range_has_no_end) {
  selection_query huge = asked;
  huge.bytes = std::numeric_limits<std::uint64_t>::max();
  huge.ranks = huge.nodes = std::numeric_limits<int>::max();
  configuration configuration;
  config.rules = {from({{"bytes", "1.."}, {"ranks", "1.."}, {"nodes", "2.."}, {"use", "x"}})};
  EXPECT_EQ(select(configuration, huge, everything, false).winner, &config.rules[0]);
}

TEST(select, symmetric_buffers_match_every_memory) {
  selection_query symmetric = asked;
  symmetric.memory = memory_kind::symmetric;
  configuration configuration;
  config.rules = {from({{"use", "x"}}), from({{"memory", "symmetric"}, {"use", "y"}})};
  EXPECT_EQ(select(configuration, symmetric, everything, false).winner->backend, "y");
  config.rules = {from({{"memory", "any"}, {"use", "x"}})};
  EXPECT_EQ(select(configuration, symmetric, everything, false).winner->backend, "x");
}

TEST(select, trace_explains_every_other_rule) {
  configuration configuration;
  config.rules = {from({{"use", "mpi"}}), from({{"platform", "hip"}, {"use", "rccl"}}),
                         from({{"use", "host"}}), from({{"use", "p2p:one_shot"}}),
                         from({{"platform", "cuda"}, {"use", "nccl"}})};
  const auto available = [](const std::string& backend, const std::string& algorithm) {
    return backend == "p2p" && algorithm == "one_shot" ? "no peer access" : nullptr;
  };
  const selection_decision result = select(configuration, asked, available, true);
  EXPECT_EQ(result.winner, &config.rules[2]);
  EXPECT_EQ(result.reason, "rule \"use=shm\" (test)");
  ASSERT_EQ(result.rejections.size(), 4u);
  EXPECT_EQ(result.rejections[0].candidate, &config.rules[4]);
  EXPECT_EQ(result.rejections[0].reason, "platform host is not cuda");
  EXPECT_EQ(result.rejections[1].candidate, &config.rules[3]);
  EXPECT_EQ(result.rejections[1].reason, "backend p2p:one_shot is not available: no peer access");
  EXPECT_EQ(result.rejections[2].reason, "platform host is not hip");
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(result.rejections[i].unavailable, i == 1) << i;
  EXPECT_EQ(result.rejections[3].reason, "it matches, but a later rule won");

  const selection_decision quiet = select(configuration, asked, available, false);
  EXPECT_EQ(quiet.winner, result.winner);
  EXPECT_TRUE(quiet.rejections.empty());
}

TEST(select, asks_only_about_rules_that_match) {
  configuration configuration;
  config.rules = {from({{"use", "mpi"}}), from({{"use", "host"}}),
                         from({{"platform", "cuda"}, {"use", "nccl"}})};
  std::vector<std::string> asked_about;
  const auto record = [&](const std::string& backend, const std::string&) -> const char* {
    asked_about.push_back(backend);
    return nullptr;
  };
  select(configuration, asked, record, true);
  EXPECT_EQ(asked_about, std::vector<std::string>{"host"});
}

TEST(select, nothing_without_rules) {
  const selection_decision result = select(configuration{}, asked, everything, true);
  EXPECT_EQ(result.winner, nullptr);
  EXPECT_EQ(result.reason, "none of 0 rules matches and has an available backend");
}

}  // namespace
}  // namespace isthmus::selection
