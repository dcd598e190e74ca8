// What islands hands to the backend between machines: every byte once, spread over the ranks; and how it is
// chosen.
#include <nlohmann/json.hpp>

#include "node_ranks.hpp"

namespace {

using hierarchical_test::run_on_nodes;
using hierarchical_test::test_rank;
using hierarchical_test::take_statistics;
using nlohmann::json;

constexpr std::uint64_t count = 12000;
constexpr std::uint64_t bytes = count * sizeof(float);

struct buffers {
  std::vector<float> send, recv;
  explicit buffers(const test_rank& self)
      : send(count * static_cast<std::uint64_t>(self.size), static_cast<float>(self.number + 1)),
        recv(send.size()) {}
};

void expect_created(const test_rank& self) { ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message; }

// Of m machines, each sends and gets 2 B (m - 1) / m of an allreduce of B: what an allreduce between machines
// of the shards moves, which are B together on each machine.
TEST(crossing, of_an_allreduce_is_the_least_and_spread_over_the_ranks) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers mine(self);
    take_statistics();
    EXPECT_EQ(isthmus_allreduce(mine.send.data(), mine.recv.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                self.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    EXPECT_EQ(mine.recv[count - 1], 10.0F);
    const wire_statistics statistics = take_statistics();
    EXPECT_EQ(statistics.ranks, 2) << "a shard is summed by one rank of each machine";
    EXPECT_EQ(statistics.summed_bytes, bytes / 2) << "of two ranks on this machine each hands over its half";
    EXPECT_EQ(statistics.moved_bytes, 0U);
  });
}

TEST(crossing, of_uneven_islands_is_that_of_the_smallest_one) {
  run_on_nodes({"a", "a", "a", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers mine(self);
    take_statistics();
    EXPECT_EQ(isthmus_allreduce(mine.send.data(), mine.recv.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                self.communicator, nullptr),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(mine.recv[0], 10.0F);
    const bool is_leader = self.number == 0 || self.number == 3;
    EXPECT_EQ(take_statistics().summed_bytes, is_leader ? bytes : 0U);
  });
}

TEST(crossing, of_a_reduce_scatter_is_what_other_machines_want_of_the_sums) {
  run_on_nodes({"a", "b", "a", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers mine(self);
    take_statistics();
    EXPECT_EQ(isthmus_reduce_scatter(mine.send.data(), mine.recv.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                     self.communicator, nullptr),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(mine.recv[0], 10.0F);
    // A block for its own machine and one for the other, whose way alone leads between.
    EXPECT_EQ(take_statistics().summed_bytes, 2 * bytes);
  });
}

TEST(crossing, of_an_allgather_is_each_block_once_to_each_other_machine) {
  run_on_nodes({"a", "b", "a", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers mine(self);
    take_statistics();
    EXPECT_EQ(isthmus_allgather(mine.send.data(), mine.recv.data(), count, ISTHMUS_FLOAT32, self.communicator,
                                nullptr),
              ISTHMUS_SUCCESS);
    for (int from = 0; from < self.size; ++from)
      EXPECT_EQ(mine.recv[count * static_cast<std::uint64_t>(from)], static_cast<float>(from + 1));
    EXPECT_EQ(take_statistics().moved_bytes, bytes) << "to one rank of the other machine";
  });
}

TEST(crossing, of_a_broadcast_is_a_shard_from_each_rank_of_the_root_s_machine) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers mine(self);
    take_statistics();
    EXPECT_EQ(isthmus_broadcast(mine.send.data(), mine.recv.data(), count, ISTHMUS_FLOAT32, 1, self.communicator,
                                nullptr),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(mine.recv[count - 1], 2.0F);
    EXPECT_EQ(take_statistics().moved_bytes, self.number < 2 ? bytes / 2 : 0U);
  });
}

TEST(crossing, of_an_alltoall_is_what_is_for_ranks_of_other_machines) {
  run_on_nodes({"a", "a", "a", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers mine(self);
    take_statistics();
    EXPECT_EQ(
        isthmus_alltoall(mine.send.data(), mine.recv.data(), count, ISTHMUS_FLOAT32, self.communicator, nullptr),
        ISTHMUS_SUCCESS);
    EXPECT_EQ(mine.recv[count * 3], 4.0F);
    EXPECT_EQ(take_statistics().moved_bytes, self.number == 3 ? 3 * bytes : bytes);
  });
}

json explain_allreduce(const test_rank& self, std::uint64_t elements = count) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = elements;
  return json::parse(hierarchical_test::text_of([&](char* text, std::size_t capacity, std::size_t* required_bytes) {
    return isthmus_communicator_explain(self.communicator, &operation, text, capacity, required_bytes);
  }));
}

TEST(choice, is_explained_down_to_the_parts) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    const json explanation = explain_allreduce(self);
    EXPECT_EQ(explanation.at("backend"), "hierarchical");
    const json& plan = explanation.at("plan");
    ASSERT_EQ(plan.size(), 3U) << plan;
    EXPECT_EQ(plan[0].at("collective"), "reduce_scatter");
    EXPECT_EQ(plan[0].at("backend"), "host");
    EXPECT_EQ(plan[0].at("bytes"), bytes);
    EXPECT_EQ(plan[1].at("collective"), "allreduce");
    EXPECT_EQ(plan[1].at("backend"), "wire");
    EXPECT_EQ(plan[1].at("bytes"), bytes / 2);
    EXPECT_EQ(plan[2].at("collective"), "allgather");
    EXPECT_EQ(plan[2].at("backend"), "host");
  });
}

TEST(choice, of_parts_is_an_option_s_where_there_is_one) {
  hierarchical_test::run_settings settings;
  settings.config += "[backend.hierarchical]\nintra_node = \"shm:one_shot\"\ninter_node = \"wire\"\n";
  run_on_nodes({"a", "a", "b", "b"}, settings, [](const test_rank& self) {
    expect_created(self);
    const json plan = explain_allreduce(self).at("plan");
    EXPECT_EQ(plan[0].at("algorithm"), "one_shot") << plan;
    EXPECT_EQ(plan[0].at("rule"), "rule \"use=shm:one_shot\" (options of backend hierarchical)");
  });
}

TEST(choice, of_parts_follows_the_defaults_where_islands_is_forced) {
  hierarchical_test::run_settings settings;
  settings.prepare = [](int) {
    setenv("ISTHMUS_BACKEND", "hierarchical", 1);
    setenv("ISTHMUS_OPTION", "backend.hierarchical.inter_node=wire", 1);
  };
  run_on_nodes({"a", "a", "b"}, settings, [](const test_rank& self) {
    expect_created(self);
    EXPECT_EQ(explain_allreduce(self).at("plan")[0].at("backend"), "host");
  });
}

TEST(creation, fails_on_all_ranks_for_an_unknown_part) {
  hierarchical_test::run_settings settings;
  settings.config += "[backend.hierarchical]\ninter_node = \"wier\"\n";
  run_on_nodes({"a", "a", "b"}, settings, [](const test_rank& self) {
    EXPECT_EQ(self.status, ISTHMUS_ERROR_CONFIG);
    EXPECT_NE(std::string(self.failure.message).find("unknown backend \"wier\""), std::string::npos)
        << self.failure.message;
  });
}

TEST(creation, says_that_nothing_crosses_between_islands) {
  hierarchical_test::run_settings settings;
  settings.config = "default_backend = \"host\"\n[[rule]]\nuse = \"host\"\n[[rule]]\nuse = \"hierarchical\"\n";
  settings.prepare = [](int) {
    setenv("ISTHMUS_BACKEND", "hierarchical", 1);
    setenv("ISTHMUS_UCX_LIBRARY", "/nowhere/libucp.so.0", 1);
  };
  run_on_nodes({"a", "b", "b"}, settings, [](const test_rank& self) {
    EXPECT_EQ(self.status, ISTHMUS_ERROR_UNSUPPORTED);
    const std::string text = self.failure.message;
    EXPECT_NE(text.find("no backend crosses between the 2 nodes of these ranks (ranks 0; 1 and 2)"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("between"), std::string::npos) << text;
  });
}

// Without a rule of the user's: what crosses is made where nothing else works, and there alone; and islands of
// it where a node has several ranks, for large messages.
TEST(creation, takes_the_last_resorts_where_they_are_needed) {
  hierarchical_test::run_settings settings;
  settings.config = "";
  constexpr std::uint64_t many = 1 << 18;
  const auto with_ucx = [](const test_rank& self, auto&& look) {
    if (self.status == ISTHMUS_SUCCESS)
      look();
    else
      EXPECT_NE(std::string(self.failure.message).find("libucp.so"), std::string::npos) << self.failure.message;
  };
  run_on_nodes({"a", "b", "a"}, settings, [=](const test_rank& self) {
    with_ucx(self, [&] {
      EXPECT_EQ(explain_allreduce(self).at("backend"), "ucx");
      const json explanation = explain_allreduce(self, many);
      EXPECT_EQ(explanation.at("backend"), "hierarchical");
      if (self.number < 2) {  // a holder
        EXPECT_EQ(explanation.at("plan")[1].at("backend"), "ucx") << explanation;
      }
      std::vector<float> data(many, static_cast<float>(self.number));
      EXPECT_EQ(isthmus_allreduce(data.data(), data.data(), many, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                  self.communicator, nullptr),
                ISTHMUS_SUCCESS)
          << topology::last_error().message;
      EXPECT_EQ(data[many - 1], 3.0F);
    });
  });
  run_on_nodes({"a", "b"}, settings, [=](const test_rank& self) {
    with_ucx(self, [&] {
      const json explanation = explain_allreduce(self, many);
      EXPECT_EQ(explanation.at("backend"), "ucx");
      EXPECT_NE(explanation.at("supports").at("hierarchical").dump().find("every rank is on a node of its own"),
                std::string::npos)
          << explanation;
    });
  });
  settings.config = "[plugins]\nwire = \"" WIRE "\"\n[[rule]]\nnodes = \"2..\"\nuse = \"wire\"\n";
  run_on_nodes({"a", "b"}, settings, [](const test_rank& self) {
    expect_created(self);
    const json explanation = explain_allreduce(self);
    EXPECT_EQ(explanation.at("backend"), "wire");
    for (const char* const last : {"ucx", "hierarchical"})
      EXPECT_EQ(explanation.at("supports").at(last), "no rule names it but a built-in one, and others work");
  });
  settings.config = "";
  run_on_nodes({"a", "a"}, settings, [](const test_rank& self) {
    expect_created(self);
    EXPECT_EQ(explain_allreduce(self).at("supports").at("ucx"),
              "no rule names it for 2 ranks of platform host on 1 node");
  });
}

TEST(creation, leaves_one_node_to_others) {
  run_on_nodes({"a", "a"}, {}, [](const test_rank& self) {
    expect_created(self);
    EXPECT_EQ(explain_allreduce(self).at("backend"), "host");
    const json explanation = explain_allreduce(self);
    EXPECT_EQ(explanation.at("supports").at("hierarchical"), "rank 0: all ranks are on one node, and on one platform");
  });
}

TEST(creation, fails_on_all_ranks_where_options_differ) {
  hierarchical_test::run_settings settings;
  settings.prepare = [](int number) {
    if (number == 2) setenv("ISTHMUS_OPTION", "backend.hierarchical.chunk_bytes=1024", 1);
  };
  run_on_nodes({"a", "a", "b"}, settings, [](const test_rank& self) {
    EXPECT_EQ(self.status, ISTHMUS_ERROR_MISMATCH);
    EXPECT_NE(std::string(self.failure.message).find("ranks that differ from rank 0: 2"), std::string::npos)
        << self.failure.message;
  });
}

TEST(creation, takes_ranks_without_a_name_for_a_node) {
  run_on_nodes({"", "a", ""}, {}, [](const test_rank& self) {
    expect_created(self);
    EXPECT_EQ(explain_allreduce(self).at("backend"), "hierarchical");
  });
}

}  // namespace
