// The data that the hierarchical backend passes to the inter-node backend (each byte once, spread over the
// ranks), and the selection of backends.
#include <isthmus/tools.h>

#include <nlohmann/json.hpp>

#include "node_ranks.hpp"

namespace {

using hierarchical_test::run_on_nodes;
using hierarchical_test::take_statistics;
using hierarchical_test::test_rank;
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

// In an allreduce of B bytes on m nodes, each node sends and receives 2 B (m - 1) / m bytes. The inter-node
// allreduce of the shards, which are B bytes per node in total, moves exactly that.
TEST(inter_node_data, allreduce_is_minimal_and_spread_over_ranks) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers data(self);
    take_statistics();
    EXPECT_EQ(isthmus_allreduce(data.send.data(), data.recv.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                self.communicator, nullptr),
              ISTHMUS_SUCCESS)
        << topology::last_error().message;
    EXPECT_EQ(data.recv[count - 1], 10.0F);
    const wire_statistics statistics = take_statistics();
    EXPECT_EQ(statistics.ranks, 2) << "one rank of each node reduces a shard";
    EXPECT_EQ(statistics.summed_bytes, bytes / 2) << "each of the two ranks on this node passes its half";
    EXPECT_EQ(statistics.moved_bytes, 0U);
  });
}

TEST(inter_node_data, uneven_nodes_use_leaders_of_smallest_node) {
  run_on_nodes({"a", "a", "a", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers data(self);
    take_statistics();
    EXPECT_EQ(isthmus_allreduce(data.send.data(), data.recv.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                self.communicator, nullptr),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(data.recv[0], 10.0F);
    const bool is_leader = self.number == 0 || self.number == 3;
    EXPECT_EQ(take_statistics().summed_bytes, is_leader ? bytes : 0U);
  });
}

TEST(inter_node_data, reduce_scatter_sends_blocks_of_other_nodes) {
  run_on_nodes({"a", "b", "a", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers data(self);
    take_statistics();
    EXPECT_EQ(isthmus_reduce_scatter(data.send.data(), data.recv.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                     self.communicator, nullptr),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(data.recv[0], 10.0F);
    // One block for a rank of this node and one for the other node.
    EXPECT_EQ(take_statistics().summed_bytes, 2 * bytes);
  });
}

TEST(inter_node_data, allgather_sends_each_block_once_per_node) {
  run_on_nodes({"a", "b", "a", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers data(self);
    take_statistics();
    EXPECT_EQ(isthmus_allgather(data.send.data(), data.recv.data(), count, ISTHMUS_FLOAT32, self.communicator,
                                nullptr),
              ISTHMUS_SUCCESS);
    for (int from = 0; from < self.size; ++from)
      EXPECT_EQ(data.recv[count * static_cast<std::uint64_t>(from)], static_cast<float>(from + 1));
    EXPECT_EQ(take_statistics().moved_bytes, bytes) << "sent to one rank of the other node";
  });
}

TEST(inter_node_data, broadcast_sends_one_shard_per_root_node_rank) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers data(self);
    take_statistics();
    EXPECT_EQ(isthmus_broadcast(data.send.data(), data.recv.data(), count, ISTHMUS_FLOAT32, 1,
                                self.communicator, nullptr),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(data.recv[count - 1], 2.0F);
    EXPECT_EQ(take_statistics().moved_bytes, self.number < 2 ? bytes / 2 : 0U);
  });
}

TEST(inter_node_data, alltoall_sends_blocks_of_other_nodes) {
  run_on_nodes({"a", "a", "a", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    buffers data(self);
    take_statistics();
    EXPECT_EQ(isthmus_alltoall(data.send.data(), data.recv.data(), count, ISTHMUS_FLOAT32, self.communicator,
                               nullptr),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(data.recv[count * 3], 4.0F);
    EXPECT_EQ(take_statistics().moved_bytes, self.number == 3 ? 3 * bytes : bytes);
  });
}

json explain(const test_rank& self, isthmus_collective collective, std::uint64_t elements) {
  isthmus_operation operation{};
  operation.collective = collective;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = elements;
  return json::parse(
      hierarchical_test::text_of([&](char* text, std::size_t capacity, std::size_t* required_bytes) {
        return isthmus_communicator_explain(self.communicator, &operation, text, capacity, required_bytes);
      }));
}

json explain_allreduce(const test_rank& self, std::uint64_t elements = count) {
  return explain(self, ISTHMUS_ALLREDUCE, elements);
}

// Ranks of uneven nodes take turns in rank order, blocks differ in length and have gaps, and every block has many chunks.
TEST(blocks, of_uneven_interleaved_nodes_are_exact) {
  const std::vector<std::string> nodes = {"a", "b", "b", "a", "b", "c", "c"};
  hierarchical_test::run_settings settings;
  settings.config += "[backend.hierarchical]\nchunk_bytes = 4096\n";
  const std::vector<std::uint64_t> lengths = {3000, 0, 1, 2999, 700, 5000, 64};
  std::vector<std::uint64_t> displs;
  std::uint64_t end = 0;
  for (const std::uint64_t length : lengths) {
    displs.push_back(end + 3);
    end += length + 5;
  }
  const auto value = [](int rank, std::uint64_t i) { return static_cast<float>((i * 7 + rank * 13) % 101); };
  run_on_nodes(nodes, settings, [&](const test_rank& self) {
    expect_created(self);
    const auto own = static_cast<std::size_t>(self.number);
    constexpr float poison = -1;
    std::vector<float> block(lengths[own]), all(end, poison), expected(end, poison);
    for (std::uint64_t i = 0; i < block.size(); ++i) block[i] = value(self.number, i);
    for (std::size_t rank = 0; rank < lengths.size(); ++rank)
      for (std::uint64_t i = 0; i < lengths[rank]; ++i)
        expected[displs[rank] + i] = value(static_cast<int>(rank), i);
    EXPECT_EQ(isthmus_allgatherv(block.data(), block.size(), all.data(), lengths.data(), displs.data(),
                                 ISTHMUS_FLOAT32, self.communicator, nullptr),
              ISTHMUS_SUCCESS);
    EXPECT_EQ(all, expected);

    for (std::uint64_t i = 0; i < end; ++i) all[i] = value(self.number, i);
    for (std::uint64_t i = 0; i < block.size(); ++i) {
      block[i] = 0;
      for (int rank = 0; rank < self.size; ++rank) block[i] += value(rank, displs[own] + i);
    }
    std::vector<float> sums(block.size() + 1, poison);
    EXPECT_EQ(isthmus_reduce_scatterv(all.data(), lengths.data(), displs.data(), sums.data(), block.size(),
                                      ISTHMUS_FLOAT32, ISTHMUS_SUM, self.communicator, nullptr),
              ISTHMUS_SUCCESS);
    block.push_back(poison);
    EXPECT_EQ(sums, block);
  });
}

TEST(selection, explain_lists_a_call_for_each_node) {
  run_on_nodes({"a", "a", "b", "b", "c", "c"}, {}, [](const test_rank& self) {
    expect_created(self);
    json plan = explain(self, ISTHMUS_ALLGATHER, count).at("plan");
    ASSERT_EQ(plan.size(), 2U) << plan;
    EXPECT_EQ(plan[0].at("collective"), "allgatherv");
    EXPECT_EQ(plan[0].at("calls"), 1);
    EXPECT_EQ(plan[1].at("collective"), "allgather");
    EXPECT_EQ(plan[1].at("calls"), 3);
    EXPECT_EQ(plan[1].at("bytes"), bytes);
    plan = explain(self, ISTHMUS_REDUCE_SCATTER, count).at("plan");
    ASSERT_EQ(plan.size(), 2U) << plan;
    EXPECT_EQ(plan[0].at("collective"), "reduce_scatter");
    EXPECT_EQ(plan[0].at("calls"), 3);
    EXPECT_EQ(plan[1].at("collective"), "reduce_scatter");
  });
}

// Node a has two leaders, so node b has two groups of ranks.
TEST(selection, explain_counts_the_groups_of_uneven_nodes) {
  run_on_nodes({"a", "a", "b", "b", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    json plan = explain(self, ISTHMUS_ALLGATHER, count).at("plan");
    EXPECT_EQ(plan.back().at("collective"), "allgatherv") << plan;
    EXPECT_EQ(plan.back().at("calls"), 3) << plan;
    if (plan.size() > 1) {  // a leader
      EXPECT_EQ(plan[0].at("calls"), 2) << plan;
    }
    EXPECT_EQ(plan.size(), self.number == 4 ? 1U : 2U);
    plan = explain(self, ISTHMUS_REDUCE_SCATTER, count).at("plan");
    EXPECT_EQ(plan[0].at("calls"), 3) << plan;
  });
}

TEST(selection, explain_lists_the_subcommunicator_steps) {
  run_on_nodes({"a", "a", "b", "b"}, {}, [](const test_rank& self) {
    expect_created(self);
    const json explanation = explain_allreduce(self);
    EXPECT_EQ(explanation.at("backend"), "hierarchical");
    const json& plan = explanation.at("plan");
    ASSERT_EQ(plan.size(), 3U) << plan;
    EXPECT_EQ(plan[0].at("collective"), "reduce_scatter");
    EXPECT_EQ(plan[0].at("backend"), "shm");
    EXPECT_EQ(plan[0].at("bytes"), bytes);
    EXPECT_EQ(plan[1].at("collective"), "allreduce");
    EXPECT_EQ(plan[1].at("backend"), "wire");
    EXPECT_EQ(plan[1].at("bytes"), bytes / 2);
    EXPECT_EQ(plan[2].at("collective"), "allgather");
    EXPECT_EQ(plan[2].at("backend"), "shm");
  });
}

TEST(selection, options_override_the_rules) {
  hierarchical_test::run_settings settings;
  settings.config += "[backend.hierarchical]\nintra_node = \"shm:one_shot\"\ninter_node = \"wire\"\n";
  run_on_nodes({"a", "a", "b", "b"}, settings, [](const test_rank& self) {
    expect_created(self);
    const json plan = explain_allreduce(self).at("plan");
    EXPECT_EQ(plan[0].at("algorithm"), "one_shot") << plan;
    EXPECT_EQ(plan[0].at("rule"), "rule \"use=shm:one_shot\" (options of backend hierarchical)");
  });
}

TEST(selection, forced_backend_keeps_rules_of_subcommunicators) {
  hierarchical_test::run_settings settings;
  settings.prepare = [](int) {
    setenv("ISTHMUS_BACKEND", "hierarchical", 1);
    setenv("ISTHMUS_OPTION", "backend.hierarchical.inter_node=wire", 1);
  };
  run_on_nodes({"a", "a", "b"}, settings, [](const test_rank& self) {
    expect_created(self);
    EXPECT_EQ(explain_allreduce(self).at("plan")[0].at("backend"), "shm");
  });
}

TEST(creation, unknown_backend_option_fails_on_all_ranks) {
  hierarchical_test::run_settings settings;
  settings.config += "[backend.hierarchical]\ninter_node = \"wier\"\n";
  run_on_nodes({"a", "a", "b"}, settings, [](const test_rank& self) {
    EXPECT_EQ(self.status, ISTHMUS_ERROR_CONFIG);
    EXPECT_NE(std::string(self.failure.message).find("unknown backend \"wier\""), std::string::npos)
        << self.failure.message;
  });
}

TEST(creation, missing_inter_node_backend_is_reported) {
  hierarchical_test::run_settings settings;
  settings.config = "default_backend = \"shm\"\n[[rule]]\nuse = \"shm\"\n[[rule]]\nuse = \"hierarchical\"\n";
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
    EXPECT_NE(text.find("inter-node"), std::string::npos) << text;
  });
}

// Without user rules, inter-node backends are created only if nothing else works. On nodes with several ranks,
// hierarchical uses them for large messages.
TEST(creation, last_resort_backends_are_used_only_if_needed) {
  hierarchical_test::run_settings settings;
  settings.config = "";
  constexpr std::uint64_t large_count = 1 << 18;
  const auto run_with_ucx = [](const test_rank& self, auto&& check) {
    if (self.status == ISTHMUS_SUCCESS)
      check();
    else
      EXPECT_NE(std::string(self.failure.message).find("libucp.so"), std::string::npos) << self.failure.message;
  };
  run_on_nodes({"a", "b", "a"}, settings, [=](const test_rank& self) {
    run_with_ucx(self, [&] {
      EXPECT_EQ(explain_allreduce(self).at("backend"), "ucx");
      const json explanation = explain_allreduce(self, large_count);
      EXPECT_EQ(explanation.at("backend"), "hierarchical");
      if (self.number < 2) {  // a leader
        EXPECT_EQ(explanation.at("plan")[1].at("backend"), "ucx") << explanation;
      }
      std::vector<float> data(large_count, static_cast<float>(self.number));
      EXPECT_EQ(isthmus_allreduce(data.data(), data.data(), large_count, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                  self.communicator, nullptr),
                ISTHMUS_SUCCESS)
          << topology::last_error().message;
      EXPECT_EQ(data[large_count - 1], 3.0F);
    });
  });
  run_on_nodes({"a", "b"}, settings, [=](const test_rank& self) {
    run_with_ucx(self, [&] {
      const json explanation = explain_allreduce(self, large_count);
      EXPECT_EQ(explanation.at("backend"), "ucx");
      EXPECT_NE(explanation.at("supports").at("hierarchical").dump().find("every rank is alone on its node"),
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
      EXPECT_EQ(explanation.at("supports").at(last),
                "no rule names it except a built-in one, and other backends are available");
  });
  settings.config = "";
  run_on_nodes({"a", "a"}, settings, [](const test_rank& self) {
    expect_created(self);
    EXPECT_EQ(explain_allreduce(self).at("supports").at("ucx"),
              "no rule names it for 2 ranks of platform host on 1 node");
  });
}

TEST(creation, single_node_is_refused) {
  run_on_nodes({"a", "a"}, {}, [](const test_rank& self) {
    expect_created(self);
    EXPECT_EQ(explain_allreduce(self).at("backend"), "shm");
    const json explanation = explain_allreduce(self);
    EXPECT_EQ(explanation.at("supports").at("hierarchical"),
              "rank 0: all ranks are on one node, and on one platform");
  });
}

TEST(creation, different_options_fail_on_all_ranks) {
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

TEST(creation, ranks_without_node_name_form_a_node) {
  run_on_nodes({"", "a", ""}, {}, [](const test_rank& self) {
    expect_created(self);
    EXPECT_EQ(explain_allreduce(self).at("backend"), "hierarchical");
  });
}

}  // namespace
