// Compares select() with an independent oracle. Random rules are formatted as text and parsed by the parser for
// environment variables. The oracle evaluates the random values directly, weakest rule first, and keeps the
// last match.
#include <algorithm>
#include <random>
#include <set>

#include "selection/layer.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

// The random values of one rule. Empty sets and absent ranges match everything.
struct drawn_rule {
  std::set<int> collectives, platforms, datatypes, ops;
  bool symmetric = false;
  std::optional<std::pair<int, int>> ranks, nodes;               // inclusive
  std::optional<std::pair<std::uint64_t, std::uint64_t>> bytes;  // the end is excluded
  int backend = 0;
};

bool oracle_matches(const drawn_rule& r, const selection_query& q) {
  if (!r.collectives.empty() && r.collectives.count(q.collective) == 0) return false;
  if (!r.platforms.empty() && r.platforms.count(q.platform) == 0) return false;
  if (!r.datatypes.empty() && r.datatypes.count(q.datatype) == 0) return false;
  if (!r.ops.empty() && (!q.op || r.ops.count(*q.op) == 0)) return false;
  if (r.symmetric && q.memory != memory_kind::symmetric) return false;
  if (r.ranks && !(r.ranks->first <= q.ranks && q.ranks <= r.ranks->second)) return false;
  if (r.nodes && !(r.nodes->first <= q.nodes && q.nodes <= r.nodes->second)) return false;
  if (r.bytes && !(q.bytes && r.bytes->first <= *q.bytes && *q.bytes < r.bytes->second)) return false;
  return true;
}

// Names are repeated here, so that the test detects wrong names in the library.
const std::vector<std::string> collectives = {"broadcast", "reduce", "allreduce", "reduce_scatter",
                                              "allgather"};
const std::vector<std::string> platforms = {"host", "cuda", "hip", "level_zero", "opencl"};
const std::vector<std::string> datatypes = {"int8", "int16", "int32", "int64", "uint8"};
const std::vector<std::string> ops = {"sum", "prod", "min", "max", "avg"};
constexpr int backend_count = 5;

class generator {
 public:
  explicit generator(unsigned seed) : m_random(seed) {}

  int draw(int first, int last) { return std::uniform_int_distribution<int>(first, last)(m_random); }

  drawn_rule rule() {
    drawn_rule r;
    r.collectives = random_subset(5);
    r.platforms = random_subset(5);
    r.datatypes = random_subset(5);
    r.ops = random_subset(5);
    r.symmetric = draw(0, 3) == 0;
    if (draw(0, 2) == 0) r.ranks = range();
    if (draw(0, 2) == 0) r.nodes = range();
    if (draw(0, 1) == 0) {
      const std::uint64_t first = size();
      r.bytes = {first, first + 1 + size()};
    }
    r.backend = draw(0, backend_count - 1);
    return r;
  }

  selection_query any_query(const std::vector<drawn_rule>& rules) {
    selection_query q{};
    q.collective = static_cast<isthmus_collective>(draw(0, 4));
    q.platform = static_cast<isthmus_platform>(draw(0, 4));
    q.datatype = static_cast<isthmus_datatype>(draw(0, 4));
    if (draw(0, 3) != 0) q.op = static_cast<isthmus_reduction_op>(draw(0, 4));
    q.memory = draw(0, 1) == 0 ? memory_kind::any : memory_kind::symmetric;
    q.ranks = draw(1, 9);
    q.nodes = draw(1, 9);
    const drawn_rule& nearby_rule =
        rules[static_cast<std::size_t>(draw(0, static_cast<int>(rules.size()) - 1))];
    if (draw(0, 9) == 0) return q;  // bytes unknown
    q.bytes = size();
    if (nearby_rule.bytes) {  // test the boundaries
      const std::uint64_t first = nearby_rule.bytes->first, end = nearby_rule.bytes->second;
      const std::uint64_t edges[] = {first, end - 1, end, first == 0 ? 0 : first - 1};
      q.bytes = edges[draw(0, 3)];
    }
    return q;
  }

 private:
  // Often empty, so that several kinds of filters can match at once.
  std::set<int> random_subset(int count) {
    std::set<int> members;
    if (draw(0, 2) != 0) return members;
    for (int i = draw(1, 3); i > 0; --i) members.insert(draw(0, count - 1));
    return members;
  }
  std::pair<int, int> range() {
    const int first = draw(1, 8);
    return {first, first + draw(0, 4)};
  }
  std::uint64_t size() { return m_random() & ((std::uint64_t{1} << draw(0, 40)) - 1); }

  std::mt19937_64 m_random;
};

std::string list(const char* field, const std::set<int>& values, const std::vector<std::string>& names) {
  std::string text;
  for (int value : values)
    text += (text.empty() ? std::string(field) + "=" : ",") + names[static_cast<std::size_t>(value)];
  return text + " ";
}

std::string text_of(const drawn_rule& r) {
  std::string text = list("collective", r.collectives, collectives) + list("platform", r.platforms, platforms) +
                     list("datatype", r.datatypes, datatypes) + list("op", r.ops, ops);
  if (r.symmetric) text += "memory=symmetric ";
  if (r.ranks) text += "ranks=" + std::to_string(r.ranks->first) + ".." + std::to_string(r.ranks->second) + " ";
  if (r.nodes) text += "nodes=" + std::to_string(r.nodes->first) + ".." + std::to_string(r.nodes->second) + " ";
  if (r.bytes) text += "bytes=" + std::to_string(r.bytes->first) + ".." + std::to_string(r.bytes->second) + " ";
  return text + "use=b" + std::to_string(r.backend);
}

class random_rules : public configured {};

TEST_F(random_rules, match_the_oracle) {
  int won = 0, lost = 0, unavailable = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    generator random(seed);
    std::vector<drawn_rule> drawn;
    std::string text;
    for (int i = random.draw(1, 30); i > 0; --i) {
      drawn.push_back(random.rule());
      text += text_of(drawn.back()) + ";";
    }
    set("ISTHMUS_RULE", text.c_str());
    const configuration config = merge({read_environment()});
    ASSERT_EQ(config.rules.size(), drawn.size());
    for (int query_index = 0; query_index < 100; ++query_index) {
      const selection_query query = random.any_query(drawn);
      const int missing = random.draw(0, backend_count - 1);
      int expected = -1;
      for (std::size_t i = 0; i < drawn.size(); ++i) {
        if (oracle_matches(drawn[i], query) && drawn[i].backend != missing) expected = static_cast<int>(i);
        if (oracle_matches(drawn[i], query) && drawn[i].backend == missing) ++unavailable;
      }
      const auto available = [&](const selection_rule& rule) {
        return rule.backend == "b" + std::to_string(missing) ? "missing" : nullptr;
      };
      const bool trace = query_index % 2 == 0;
      const selection_decision result = select(config, query, available, trace);
      const int actual = result.winner == nullptr ? -1 : static_cast<int>(result.winner - config.rules.data());
      ASSERT_EQ(actual, expected) << "seed " << seed << ", query " << query_index << "\n" << config.canonical();
      ASSERT_EQ(result.rejections.size(), trace ? drawn.size() - (expected >= 0 ? 1 : 0) : 0);
      ++(expected >= 0 ? won : lost);
    }
  }
  // All three outcomes must occur often enough.
  EXPECT_GT(won, 1000);
  EXPECT_GT(lost, 1000);
  EXPECT_GT(unavailable, 1000);
}

}  // namespace
}  // namespace isthmus::selection
