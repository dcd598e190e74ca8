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

TEST(profile, written_rules_round_trip) {
  const std::vector<selection_rule> rules = sample_rules();
  const std::string text = write_profile(rules, "two\nlines\twith \x01 control\n\nend");
  const config_layer read = read_toml(text, "p.toml", "profile");
  EXPECT_EQ(texts(read.rules), texts(rules));
  for (std::size_t i = 0; i < rules.size(); ++i) {
    EXPECT_EQ(read.rules[i].has_byte_range, rules[i].has_byte_range);
    EXPECT_EQ(read.rules[i].min_bytes, rules[i].min_bytes);
    EXPECT_EQ(read.rules[i].end_bytes, rules[i].end_bytes);
    EXPECT_EQ(read.rules[i].max_ranks, rules[i].max_ranks);
    EXPECT_EQ(read.rules[i].algorithm, rules[i].algorithm);
  }
}

TEST(profile, text_is_readable_toml) {
  EXPECT_EQ(write_profile({sample_rules()[1]}, "tuned\n\nhere"),
            "# tuned\n#\n# here\n\n[[rule]]\ncollective = [\"reduce\", \"allreduce\"]\nplatform = [\"host\", "
            "\"cuda\"]\n"
            "datatype = [\"float16\"]\nmemory = \"symmetric\"\nranks = \"2..8\"\nnodes = \"1\"\n"
            "bytes = \"1K..65537\"\nuse = \"shm:two_shot\"\n");
  EXPECT_EQ(write_profile({}, ""), "");
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
