#include "selection/grammar.hpp"

#include <gtest/gtest.h>

namespace isthmus::selection {
namespace {

template <typename Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (const grammar_error& what) {
    return what.message;
  }
  return "no error";
}

template <typename Function>
std::string hint_of(Function&& function) {
  try {
    function();
  } catch (const grammar_error& what) {
    return what.hint;
  }
  return "no error";
}

TEST(sizes, units_are_binary) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("1"), 1u);
  EXPECT_EQ(parse_size("64K"), 65536u);
  EXPECT_EQ(parse_size("3M"), 3145728u);
  EXPECT_EQ(parse_size("2G"), 2147483648u);
}

TEST(sizes, limit_is_2_to_the_63) {
  const std::uint64_t largest = std::uint64_t{1} << 63;
  EXPECT_EQ(parse_size("9223372036854775808"), largest);
  EXPECT_EQ(parse_size("8589934592G"), largest);
  EXPECT_EQ(message_of([] { parse_size("9223372036854775809"); }),
            "size \"9223372036854775809\" is above 2^63 bytes");
  EXPECT_EQ(message_of([] { parse_size("8589934593G"); }), "size \"8589934593G\" is above 2^63 bytes");
  EXPECT_EQ(message_of([] { parse_size("99999999999999999999999K"); }),
            "size \"99999999999999999999999K\" is above 2^63 bytes");
}

TEST(sizes, other_texts_are_rejected) {
  for (const char* text : {"", "K", "-1", "+1", "1.5K", "64k", "64KB", "64KiB", "0x10", " 1", "1 ", "1T", "KK"})
    EXPECT_EQ(message_of([&] { parse_size(text); }),
              "size \"" + std::string(text) +
                  "\" is not a number of bytes; allowed: digits and one of the units K, M, G (1024, 1024^2, "
                  "1024^3)");
}

TEST(sizes, format_is_shortest_and_round_trips) {
  EXPECT_EQ(format_size(0), "0");
  EXPECT_EQ(format_size(1023), "1023");
  EXPECT_EQ(format_size(1024), "1K");
  EXPECT_EQ(format_size(1536 * 1024), "1536K");
  EXPECT_EQ(format_size(std::uint64_t{1} << 63), "8589934592G");
  for (int bit = 0; bit < 63; ++bit) {
    for (const std::uint64_t delta : {0u, 1u}) {
      const std::uint64_t size = (std::uint64_t{1} << bit) + delta;
      EXPECT_EQ(parse_size(format_size(size)), size);
    }
  }
}

TEST(thresholds, sizes_zero_and_negative) {
  EXPECT_EQ(parse_threshold("64K"), 65536);
  EXPECT_EQ(parse_threshold("0"), 0);
  EXPECT_EQ(parse_threshold("-1"), -1);
  EXPECT_EQ(parse_threshold("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(parse_threshold("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(message_of([] { parse_threshold("9223372036854775808"); }),
            "threshold \"9223372036854775808\" is above 2^63 - 1");
  EXPECT_EQ(message_of([] { parse_threshold("-K"); }),
            "threshold \"-K\" is not a number of bytes; allowed: a size such as 64K, 0 (always the vendor's "
            "backend) or -1 (always mpi)");
}

TEST(seconds, positive_and_finite) {
  EXPECT_EQ(parse_seconds("0.25"), 0.25);
  for (const char* text : {"0", "-1", "inf", "nan", "1s", ""})
    EXPECT_EQ(message_of([&] { parse_seconds(text); }),
              "timeout_s \"" + std::string(text) + "\" is not a positive number of seconds");
}

TEST(names, cover_the_collective_table) {
  ASSERT_EQ(collective_names().size(), std::size_t{ISTHMUS_COLLECTIVE_COUNT});
  ASSERT_EQ(datatype_names().size(), std::size_t{ISTHMUS_DATATYPE_COUNT});
  ASSERT_EQ(platform_names().size(), std::size_t{ISTHMUS_PLATFORM_COUNT} + 1);
  EXPECT_EQ(platform_names().back(), "mixed");
  EXPECT_EQ(collective_names()[ISTHMUS_REDUCE_SCATTER], "reduce_scatter");
  EXPECT_EQ(datatype_names()[ISTHMUS_FLOAT8_E5M2], "float8_e5m2");
  EXPECT_EQ(platform_names()[ISTHMUS_PLATFORM_LEVEL_ZERO], "level_zero");
}

TEST(names, nearest_spelling) {
  const auto collective = [](const char* text) {
    return hint_of([&] { parse_name("collective", collective_names(), text); });
  };
  EXPECT_EQ(collective("alreduce"), "did you mean \"allreduce\"?");
  EXPECT_EQ(collective("all_gather"), "did you mean \"allgather\"?");
  EXPECT_EQ(collective("reducescatter"), "did you mean \"reduce_scatter\"?");
  EXPECT_EQ(collective("bcast"), "did you mean \"broadcast\"?");  // an abbreviation
  EXPECT_EQ(collective("rcev"), "did you mean \"recv\"?");        // a swap
  EXPECT_EQ(collective("matmul"), "");                            // no name is close
  EXPECT_EQ(collective(""), "");
  EXPECT_EQ(collective(std::string(100000, 'a').c_str()), "");
  EXPECT_EQ(hint_of([] { parse_name("datatype", datatype_names(), "bf16"); }), "did you mean \"bfloat16\"?");
}

selection_rule parsed(std::initializer_list<std::pair<const char*, const char*>> fields) {
  selection_rule result;
  for (const auto& [field, value] : fields) set_field(result, field, value);
  finish_rule(result);
  return result;
}

TEST(rules, ranges) {
  const selection_rule closed = parsed({{"ranks", "2..8"}, {"nodes", "1"}, {"bytes", "1K..1M"}, {"use", "x"}});
  EXPECT_EQ(closed.min_ranks, 2);
  EXPECT_EQ(closed.max_ranks, 8);
  EXPECT_EQ(closed.min_nodes, 1);
  EXPECT_EQ(closed.max_nodes, 1);
  EXPECT_EQ(closed.min_bytes, 1024u);
  EXPECT_EQ(closed.end_bytes, 1048576u);
  EXPECT_TRUE(closed.has_byte_range);

  const selection_rule open = parsed({{"ranks", "..4"}, {"nodes", "3.."}, {"bytes", "..9"}, {"use", "x"}});
  EXPECT_EQ(open.min_ranks, 1);
  EXPECT_EQ(open.max_ranks, 4);
  EXPECT_EQ(open.min_nodes, 3);
  EXPECT_EQ(open.max_nodes, unbounded_count);
  EXPECT_EQ(open.min_bytes, 0u);
  EXPECT_EQ(open.end_bytes, 9u);
}

TEST(rules, text_is_canonical) {
  EXPECT_EQ(parsed({{"use", "mpi"}}).text, "use=mpi");
  EXPECT_EQ(parsed({{"use", "shm:packet"},
                    {"bytes", "1024..1048576"},
                    {"nodes", "2..2"},
                    {"ranks", "1.."},
                    {"memory", "symmetric"},
                    {"datatype", "float64"},
                    {"datatype", "float16"},
                    {"datatype", "float64"},
                    {"op", "min"},
                    {"op", "sum"},
                    {"platform", "host"},
                    {"collective", "allreduce"},
                    {"collective", "broadcast"}})
                .text,
            "collective=broadcast,allreduce platform=host datatype=float16,float64 op=sum,min memory=symmetric "
            "nodes=2 bytes=1K..1M use=shm:packet");
}

}  // namespace
}  // namespace isthmus::selection
