#include <nlohmann/json.hpp>

#include "selection/layer.hpp"
#include "selection/selection.hpp"
#include "selection/support.hpp"

namespace isthmus::selection {
namespace {

const char* only_mpi(const selection_rule& rule) { return rule.backend == "mpi" ? nullptr : "no such library"; }

TEST(explain, decision_as_json) {
  const configuration rules =
      merge({read_toml("[[rule]]\nuse = \"mpi\"\n[[rule]]\nbytes = \"0..1K\"\nuse = \"shm:packet\"\n"
                       "[[rule]]\nplatform = \"cuda\"\nuse = \"nccl\"",
                       "f.toml", "config")});
  const selection_query query{
      ISTHMUS_ALLGATHER, ISTHMUS_BFLOAT16, ISTHMUS_PLATFORM_HOST, memory_kind::symmetric, 4, 1, 64};
  const auto expected = nlohmann::json::parse(R"json({
    "backend": "mpi", "algorithm": "", "rule": "use=mpi", "source": "config f.toml:1",
    "reason": "rule \"use=mpi\" (config f.toml:1)",
    "query": {"collective": "allgather", "datatype": "bfloat16", "op": null, "platform": "host",
              "memory": "symmetric",
              "ranks": 4, "nodes": 1, "bytes": 64},
    "rejected": [{"backend": "nccl", "algorithm": "", "rule": "platform=cuda use=nccl", "source": "config f.toml:6",
                  "reason": "platform host is not cuda", "unavailable": false, "is_relevant": false},
                 {"backend": "shm", "algorithm": "packet", "rule": "bytes=0..1K use=shm:packet",
                  "source": "config f.toml:3",
                  "reason": "backend shm:packet cannot run this call: no such library", "unavailable": true,
                  "is_relevant": true}]})json");
  EXPECT_EQ(to_json(query, select(rules, query, only_mpi, true)), expected);
}

TEST(explain, no_winner_and_unknown_bytes_are_null) {
  const selection_query query{ISTHMUS_GATHERV, ISTHMUS_INT8, ISTHMUS_PLATFORM_CUDA, memory_kind::any, 2, 2,
                              std::nullopt};
  const auto json = to_json(query, select(configuration{}, query, only_mpi, true));
  for (const char* key : {"backend", "algorithm", "rule", "source"}) EXPECT_TRUE(json.at(key).is_null()) << key;
  EXPECT_TRUE(json.at("query").at("bytes").is_null());
  EXPECT_EQ(json.at("rejected"), nlohmann::json::array());
  EXPECT_EQ(json.at("reason"), "none of the 0 rules matches and has an available backend");
}

}  // namespace
}  // namespace isthmus::selection
