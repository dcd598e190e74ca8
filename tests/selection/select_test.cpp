#include "selection/grammar.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

selection_rule make_rule(std::initializer_list<std::pair<const char*, const char*>> fields) {
  selection_rule result;
  for (const auto& [field, value] : fields) set_field(result, field, value);
  finish_rule(result);
  result.source = "test";
  return result;
}

const char* supports_all(const selection_rule&) { return nullptr; }

constexpr selection_query base_query{
    ISTHMUS_ALLREDUCE, ISTHMUS_FLOAT32, ISTHMUS_PLATFORM_HOST, memory_kind::any, 4, 2, 4096, ISTHMUS_MAX};

// The reason why the only rule does not match the query.
std::string reason(std::initializer_list<std::pair<const char*, const char*>> fields,
                   selection_query query = base_query) {
  configuration config;
  config.rules = {make_rule(fields)};
  const selection_decision result = select(config, query, supports_all, true);
  EXPECT_EQ(result.winner, nullptr);
  EXPECT_EQ(result.reason, "none of the 1 rules matches and has an available backend");
  return result.rejections.size() == 1 ? result.rejections[0].reason : "not one rejection";
}

TEST(select, reason_names_the_failed_filter) {
  EXPECT_EQ(reason({{"collective", "reduce"}, {"use", "x"}}), "collective allreduce is not reduce");
  EXPECT_EQ(reason({{"collective", "send"}, {"collective", "reduce"}, {"use", "x"}}),
            "collective allreduce is not one of reduce, send");
  EXPECT_EQ(reason({{"platform", "cuda"}, {"use", "x"}}), "platform host is not cuda");
  EXPECT_EQ(reason({{"datatype", "int8"}, {"datatype", "float64"}, {"use", "x"}}),
            "datatype float32 is not one of int8, float64");
  EXPECT_EQ(reason({{"op", "sum"}, {"op", "avg"}, {"use", "x"}}), "op max is not one of sum, avg");
  EXPECT_EQ(reason({{"memory", "symmetric"}, {"use", "x"}}), "the buffers are not both in the symmetric heap");
  EXPECT_EQ(reason({{"ranks", "8"}, {"use", "x"}}), "ranks 4 is not 8");
  EXPECT_EQ(reason({{"ranks", "5.."}, {"use", "x"}}), "ranks 4 is outside 5..");
  EXPECT_EQ(reason({{"ranks", "..3"}, {"use", "x"}}), "ranks 4 is outside 1..3");
  EXPECT_EQ(reason({{"nodes", "1"}, {"use", "x"}}), "nodes 2 is not 1");
  EXPECT_EQ(reason({{"nodes", "3..9"}, {"use", "x"}}), "nodes 2 is outside 3..9");
  EXPECT_EQ(reason({{"bytes", "64K.."}, {"use", "x"}}), "bytes 4096 is less than 65536");
  EXPECT_EQ(reason({{"bytes", "0..4K"}, {"use", "x"}}), "bytes 4096 is not less than 4096");
}

TEST(select, op_matches_only_reductions) {
  selection_query query = base_query;
  query.collective = ISTHMUS_BROADCAST;
  query.op = std::nullopt;
  EXPECT_EQ(reason({{"op", "max"}, {"use", "x"}}, query), "broadcast has no op");
}

TEST(select, byte_range_requires_a_shared_size) {
  selection_query unknown = base_query;
  unknown.bytes = std::nullopt;
  EXPECT_EQ(reason({{"bytes", "0.."}, {"use", "x"}}, unknown),
            "bytes are not known on all ranks, but the rule requires 0..");
}

TEST(select, open_range_has_no_upper_limit) {
  selection_query huge = base_query;
  huge.bytes = std::numeric_limits<std::uint64_t>::max();
  huge.ranks = huge.nodes = std::numeric_limits<int>::max();
  configuration config;
  config.rules = {make_rule({{"bytes", "1.."}, {"ranks", "1.."}, {"nodes", "2.."}, {"use", "x"}})};
  EXPECT_EQ(select(config, huge, supports_all, false).winner, &config.rules[0]);
}

TEST(select, counts_include_both_limits_bytes_only_the_lower) {
  struct {
    const char *field, *range;
    std::uint64_t last_matching;
  } const cases[] = {{"ranks", "2..4", 4}, {"nodes", "2..4", 4}, {"bytes", "2..4", 3}};
  for (const auto& [field, range, last_matching] : cases)
    for (std::uint64_t value = 1; value <= 5; ++value) {
      selection_query query = base_query;
      if (std::string(field) == "bytes")
        query.bytes = value;
      else
        (std::string(field) == "ranks" ? query.ranks : query.nodes) = static_cast<int>(value);
      configuration config;
      config.rules = {make_rule({{field, range}, {"use", "x"}})};
      EXPECT_EQ(select(config, query, supports_all, false).winner != nullptr,
                value >= 2 && value <= last_matching)
          << field << " " << value;
    }
}

TEST(select, symmetric_buffers_match_any_memory) {
  selection_query symmetric = base_query;
  symmetric.memory = memory_kind::symmetric;
  configuration config;
  config.rules = {make_rule({{"use", "x"}}), make_rule({{"memory", "symmetric"}, {"use", "y"}})};
  EXPECT_EQ(select(config, symmetric, supports_all, false).winner->backend, "y");
  config.rules = {make_rule({{"memory", "any"}, {"use", "x"}})};
  EXPECT_EQ(select(config, symmetric, supports_all, false).winner->backend, "x");
}

TEST(select, trace_explains_all_other_rules) {
  configuration config;
  config.rules = {make_rule({{"use", "mpi"}}), make_rule({{"platform", "hip"}, {"use", "rccl"}}),
                  make_rule({{"use", "shm"}}), make_rule({{"use", "p2p:one_shot"}}),
                  make_rule({{"platform", "cuda"}, {"use", "nccl"}})};
  const auto available = [](const selection_rule& rule) {
    return rule.backend == "p2p" && rule.algorithm == "one_shot" ? "no peer access" : nullptr;
  };
  const selection_decision result = select(config, base_query, available, true);
  EXPECT_EQ(result.winner, &config.rules[2]);
  EXPECT_EQ(result.reason, "rule \"use=shm\" (test)");
  ASSERT_EQ(result.rejections.size(), 4u);
  EXPECT_EQ(result.rejections[0].candidate, &config.rules[4]);
  EXPECT_EQ(result.rejections[0].reason, "platform host is not cuda");
  EXPECT_EQ(result.rejections[1].candidate, &config.rules[3]);
  EXPECT_EQ(result.rejections[1].reason, "backend p2p:one_shot cannot run this call: no peer access");
  EXPECT_EQ(result.rejections[2].reason, "platform host is not hip");
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(result.rejections[i].is_unavailable, i == 1) << i;
  EXPECT_EQ(result.rejections[3].reason, "matches, but the selected rule takes precedence");

  const selection_decision quiet = select(config, base_query, available, false);
  EXPECT_EQ(quiet.winner, result.winner);
  EXPECT_TRUE(quiet.rejections.empty());
}

TEST(select, checks_availability_of_matching_rules_only) {
  configuration config;
  config.rules = {make_rule({{"use", "mpi"}}), make_rule({{"use", "shm"}}),
                  make_rule({{"platform", "cuda"}, {"use", "nccl"}})};
  std::vector<std::string> queried_backends;
  const auto record = [&](const selection_rule& rule) -> const char* {
    queried_backends.push_back(rule.backend);
    return nullptr;
  };
  select(config, base_query, record, true);
  EXPECT_EQ(queried_backends, std::vector<std::string>{"shm"});
}

TEST(select, no_rules_select_nothing) {
  const selection_decision result = select(configuration{}, base_query, supports_all, true);
  EXPECT_EQ(result.winner, nullptr);
  EXPECT_EQ(result.reason, "none of the 0 rules matches and has an available backend");
}

}  // namespace
}  // namespace isthmus::selection
