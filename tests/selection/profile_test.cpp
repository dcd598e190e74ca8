#include "selection/profile.hpp"

#include <set>

#include "selection/grammar.hpp"
#include "selection/layer.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

selection_rule make_rule(std::initializer_list<std::pair<const char*, const char*>> fields) {
  selection_rule result;
  for (const auto& [field, value] : fields) set_field(result, field, value);
  finish_rule(result);
  return result;
}

std::vector<selection_rule> sample_rules() {
  return {make_rule({{"use", "mpi"}}),
          make_rule({{"collective", "reduce"},
                     {"collective", "allreduce"},
                     {"platform", "host"},
                     {"platform", "cuda"},
                     {"datatype", "float16"},
                     {"memory", "symmetric"},
                     {"ranks", "2..8"},
                     {"nodes", "1"},
                     {"bytes", "1K..65537"},
                     {"use", "shm:two_shot"}}),
          make_rule({{"ranks", "3"}, {"nodes", "2.."}, {"bytes", "8G.."}, {"use", "nccl"}}),
          make_rule({{"bytes", "..9223372036854775808"}, {"use", "p2p"}})};
}

// The texts of rules, as info and explain show them, are valid values of ISTHMUS_RULE.
TEST(profile, texts_of_rules_round_trip) {
  const std::vector<selection_rule> rules = sample_rules();
  std::string text;
  for (const selection_rule& rule : rules) text += rule.text + ";";
  setenv("ISTHMUS_RULE", text.c_str(), 1);
  const config_layer read = read_environment();
  unsetenv("ISTHMUS_RULE");
  EXPECT_EQ(texts(read.rules), texts(rules));
  ASSERT_EQ(read.rules.size(), rules.size());
  for (std::size_t i = 0; i < rules.size(); ++i) {
    EXPECT_EQ(read.rules[i].has_byte_range, rules[i].has_byte_range);
    EXPECT_EQ(read.rules[i].min_bytes, rules[i].min_bytes);
    EXPECT_EQ(read.rules[i].end_bytes, rules[i].end_bytes);
    EXPECT_EQ(read.rules[i].max_ranks, rules[i].max_ranks);
    EXPECT_EQ(read.rules[i].algorithm, rules[i].algorithm);
  }
  EXPECT_EQ(
      rules[1].text,
      "collective=reduce,allreduce platform=host,cuda datatype=float16 memory=symmetric ranks=2..8 nodes=1 "
      "bytes=1K..65537 use=shm:two_shot");
}

TEST(profile, machine_id_depends_on_every_property) {
  const machine_description base{"CPU", 4, {"A", "B"}};
  std::set<std::string> ids = {machine_id(base)};
  for (const machine_description& other :
       {machine_description{"CPU2", 4, {"A", "B"}}, machine_description{"CPU", 5, {"A", "B"}},
        machine_description{"CPU", 4, {"A"}}, machine_description{"CPU", 4, {"AB"}},
        machine_description{"CPU", 4, {"A", "B", "B"}}, machine_description{"", 0, {}}})
    ids.insert(machine_id(other));
  EXPECT_EQ(ids.size(), 7u);
  EXPECT_EQ(machine_id({"CPU", 4, {"B", "A"}}), machine_id(base));
}

// The id is part of file names that must stay valid across versions.
TEST(profile, machine_id_is_stable) { EXPECT_EQ(machine_id({"CPU", 4, {"GPU"}}), "309e9c7f409ea7af"); }

TEST(profile, detect_machine_is_deterministic) {
  const machine_description machine = detect_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_EQ(machine_id(machine), machine_id(detect_machine()));
}

}  // namespace
}  // namespace isthmus::selection
