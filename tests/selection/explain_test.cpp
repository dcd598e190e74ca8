#include <fmt/format.h>

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
                  "reason": "platform host is not cuda", "mismatch": "platform", "unavailable": false,
                  "is_relevant": false},
                 {"backend": "shm", "algorithm": "packet", "rule": "bytes=0..1K use=shm:packet",
                  "source": "config f.toml:3",
                  "reason": "backend shm:packet cannot run this call: no such library", "mismatch": null,
                  "unavailable": true, "is_relevant": true}]})json");
  EXPECT_EQ(to_json(query, select(rules, query, only_mpi, true)), expected);
}

// Built-in rules are numerous, so only those are relevant that could replace the selected rule.
TEST(explain, relevant_rules_are_those_that_users_can_act_on) {
  const auto read = [](const std::string& text, const char* kind) { return read_toml(text, "f.toml", kind); };
  const configuration rules = merge({read("[[rule]]\nuse = \"mpi\"\n"
                                          "[[rule]]\nplatform = \"host\"\nuse = \"mpi\"\n"
                                          "[[rule]]\nbytes = \"1K..\"\nuse = \"mpi\"\n"
                                          "[[rule]]\nuse = \"ucx\"\n",
                                          "default"),
                                     read("[[rule]]\nranks = 8\nuse = \"mpi\"\n"
                                          "[[rule]]\nbytes = \"1K..\"\nuse = \"mpi\"\n"
                                          "[[rule]]\nbytes = \"..1K\"\nuse = \"mpi\"\n",
                                          "profile"),
                                     read("[[rule]]\ncollective = \"barrier\"\nuse = \"mpi\"\n"
                                          "[[rule]]\nplatform = \"cuda\"\nuse = \"mpi\"\n"
                                          "[[rule]]\nop = \"max\"\nuse = \"mpi\"\n"
                                          "[[rule]]\ndatatype = \"int8\"\nuse = \"mpi\"\n"
                                          "[[rule]]\nmemory = \"symmetric\"\nuse = \"mpi\"\n"
                                          "[[rule]]\nnodes = 2\nuse = \"mpi\"\n"
                                          "[[rule]]\nranks = 2\nuse = \"mpi\"\n"
                                          "[[rule]]\nuse = \"shm\"\n",
                                          "config")});
  selection_query query{ISTHMUS_ALLREDUCE, ISTHMUS_FLOAT32, ISTHMUS_PLATFORM_HOST, memory_kind::any, 4, 1, 64};
  query.op = ISTHMUS_SUM;
  const nlohmann::json json = to_json(query, select(rules, query, only_mpi, true));
  std::vector<std::string> described;
  for (const nlohmann::json& entry : json.at("rejected"))
    described.push_back(fmt::format("{} {} {}{}", entry.at("rule").get<std::string>(),
                                    entry.at("mismatch").dump(),
                                    entry.at("unavailable").get<bool>() ? "unavailable " : "",
                                    entry.at("is_relevant").get<bool>() ? "shown" : "hidden"));
  EXPECT_EQ(
      described,
      (std::vector<std::string>{
          "use=shm null unavailable shown", "ranks=2 use=mpi \"ranks\" shown",
          "nodes=2 use=mpi \"nodes\" shown", "memory=symmetric use=mpi \"memory\" shown",
          "datatype=int8 use=mpi \"datatype\" shown", "op=max use=mpi \"op\" shown",
          "platform=cuda use=mpi \"platform\" hidden", "collective=barrier use=mpi \"collective\" hidden",
          // In the profile, the rule bytes=0..1K is selected.
          "bytes=1K.. use=mpi \"bytes\" shown", "ranks=8 use=mpi \"ranks\" hidden", "use=ucx null shown",
          "bytes=1K.. use=mpi \"bytes\" hidden", "platform=host use=mpi null hidden", "use=mpi null hidden"}));
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
