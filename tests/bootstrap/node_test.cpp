// Assignment of ranks to nodes: the node id of a process, and communicators across nodes.
#include <isthmus/tools.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bootstrap/membership.hpp"
#include "bootstrap/support.hpp"
#include "topology/topology.hpp"

namespace {

// Sets ISTHMUS_NODE for the lifetime of the object.
class scoped_node {
 public:
  explicit scoped_node(const std::string& name) { setenv("ISTHMUS_NODE", name.c_str(), 1); }
  ~scoped_node() { unsetenv("ISTHMUS_NODE"); }
  scoped_node(const scoped_node&) = delete;
  scoped_node& operator=(const scoped_node&) = delete;
};

TEST(node, id_of_a_process_is_constant) {
  EXPECT_EQ(isthmus::own_node_id(), isthmus::own_node_id());
  EXPECT_FALSE(isthmus::own_node_id().empty());
}

TEST(node, name_is_appended_to_the_id) {
  const std::string machine = isthmus::own_node_id();
  const scoped_node node_name("left");
  EXPECT_EQ(isthmus::own_node_id(), machine + "left");
}

TEST(node, empty_name_has_no_effect) {
  const std::string machine = isthmus::own_node_id();
  const scoped_node node_name("");
  EXPECT_EQ(isthmus::own_node_id(), machine);
}

TEST(node, longest_names_differ_and_longer_ones_fail) {
  const std::string longest(isthmus::max_node_name_bytes, 'x');
  std::string other = longest;
  other.back() = 'y';
  std::string first, second;
  {
    const scoped_node node_name(longest);
    first = isthmus::own_node_id();
  }
  {
    const scoped_node node_name(other);
    second = isthmus::own_node_id();
  }
  EXPECT_NE(first, second);
  EXPECT_LT(first.size(), 192U) << "capacity of the field in membership.cpp";
  const scoped_node node_name(longest + "z");
  const auto failure = test::error_of([] { isthmus::own_node_id(); });
  EXPECT_EQ(failure.status, ISTHMUS_ERROR_CONFIG);
  EXPECT_NE(std::string(failure.message).find("environment ISTHMUS_NODE: the name has 65 bytes"),
            std::string::npos)
      << failure.message;
}

struct outcome {
  isthmus_status status;
  int nodes, node_size;
  isthmus_error_info failure;
};

// Creates a communicator with one process per rank and these values of ISTHMUS_NODE; only `backend` is enabled.
std::vector<outcome> create_in_processes(const std::vector<std::string>& nodes, const char* backend) {
  const int size = static_cast<int>(nodes.size());
  auto& all = topology::rendezvous::create(size);
  auto* const outcomes = reinterpret_cast<outcome*>(topology::map_shared(nodes.size() * sizeof(outcome)));
  setenv("ISTHMUS_BACKEND", backend, 1);
  topology::child_processes ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.start(rank, [&, rank] {
      const scoped_node node_name(nodes[static_cast<std::size_t>(rank)]);
      const isthmus_unique_id id = all.new_unique_id(rank);
      isthmus_communicator communicator = nullptr;
      outcome& own_outcome = outcomes[rank];
      own_outcome.status = isthmus_communicator_create(&id, rank, size, nullptr, &communicator);
      isthmus_last_error(&own_outcome.failure);
      all.wait();  // rank 0 serves the store
      if (own_outcome.status != ISTHMUS_SUCCESS) return 0;
      std::string text(1 << 20, '\0');
      isthmus_communicator_info(communicator, text.data(), text.size(), nullptr);
      const auto info = nlohmann::json::parse(text.c_str());
      own_outcome.nodes = info.at("nodes");
      const auto node_of = info.at("node_of").get<std::vector<int>>();
      own_outcome.node_size =
          static_cast<int>(std::count(node_of.begin(), node_of.end(), node_of[static_cast<std::size_t>(rank)]));
      isthmus_communicator_destroy(communicator);
      return 0;
    });
  for (const auto& each : ranks.join()) EXPECT_EQ(each.failures(), 0);
  unsetenv("ISTHMUS_BACKEND");
  return {outcomes, outcomes + nodes.size()};
}

TEST(node, error_names_nodes_that_no_backend_connects) {
  for (const outcome& each : create_in_processes({"left", "right", "left", "right"}, "shm")) {
    EXPECT_EQ(each.status, ISTHMUS_ERROR_UNSUPPORTED);
    const std::string text = each.failure.message;
    EXPECT_NE(text.find("no backend crosses between the 2 nodes of these ranks (ranks 0 and 2; 1 and 3)"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("shm: it supports a single node, and the ranks are on 2 nodes"), std::string::npos)
        << text;
  }
}

TEST(node, invalid_name_fails_creation_on_all_ranks) {
  for (const outcome& each : create_in_processes({"left", std::string(65, 'x'), "left"}, "shm")) {
    EXPECT_NE(each.status, ISTHMUS_SUCCESS);
    EXPECT_NE(std::string(each.failure.message).find("ISTHMUS_NODE"), std::string::npos)
        << each.failure.message;
  }
}

TEST(node, ranks_with_the_same_name_share_memory) {
  for (const outcome& each : create_in_processes({"left", "left", "left"}, "shm")) {
    EXPECT_EQ(each.status, ISTHMUS_SUCCESS) << each.failure.message;
    EXPECT_EQ(each.nodes, 1);
    EXPECT_EQ(each.node_size, 3);
  }
}

}  // namespace
