#include "selection/profile.hpp"

#include <set>

#include "selection/grammar.hpp"
#include "selection/layer.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

selection_rule from(std::initializer_list<std::pair<const char*, const char*>> fields) {
  selection_rule result;
  for (const auto& [field, value] : fields) set_field(result, field, value);
  finish_rule(result);
  return result;
}

std::vector<selection_rule> all_kinds_of_rules() {
  return {from({{"use", "mpi"}}),
          from({{"collective", "reduce"},
                {"collective", "allreduce"},
                {"platform", "host"},
                {"platform", "cuda"},
                {"datatype", "float16"},
                {"memory", "symmetric"},
                {"ranks", "2..8"},
                {"nodes", "1"},
                {"bytes", "1K..65537"},
                {"use", "shm:two_shot"}}),
          from({{"ranks", "3"}, {"nodes", "2.."}, {"bytes", "8G.."}, {"use", "nccl"}}),
          from({{"bytes", "..9223372036854775808"}, {"use", "p2p"}})};
}

TEST(profile, written_rules_read_back) {
  const std::vector<selection_rule> rules = all_kinds_of_rules();
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

TEST(profile, text_is_what_a_person_would_write) {
  EXPECT_EQ(write_profile({all_kinds_of_rules()[1]}, "tuned\n\nhere"),
            "# tuned\n#\n# here\n\n[[rule]]\ncollective = [\"reduce\", \"allreduce\"]\nplatform = [\"host\", "
            "\"cuda\"]\n"
            "datatype = [\"float16\"]\nmemory = \"symmetric\"\nranks = \"2..8\"\nnodes = \"1\"\n"
            "bytes = \"1K..65537\"\nuse = \"shm:two_shot\"\n");
  EXPECT_EQ(write_profile({}, ""), "");
}

TEST(profile, machine_ids_differ_in_every_part) {
  const machine_description base{"CPU", 4, {"A", "B"}};
  std::set<std::string> ids = {machine_id(base)};
  for (const machine_description& other :
       {machine{"CPU2", 4, {"A", "B"}}, machine{"CPU", 5, {"A", "B"}}, machine{"CPU", 4, {"A"}},
        machine{"CPU", 4, {"AB"}}, machine{"CPU", 4, {"A", "B", "B"}}, machine{"", 0, {}}})
    ids.insert(machine_id(other));
  EXPECT_EQ(ids.size(), 7u);
}

// The value stands in file names that outlive a version, so it may not change.
TEST(profile, machine_id_is_stable) { EXPECT_EQ(machine_id({"CPU", 4, {"GPU"}}), "309e9c7f409ea7af"); }

TEST(profile, this_machine_is_the_same_twice) {
  const machine_description here = detect_machine();
  EXPECT_GE(here.cores, 1);
  EXPECT_EQ(machine_id(here), machine_id(detect_machine()));
}

}  // namespace
}  // namespace isthmus::selection
