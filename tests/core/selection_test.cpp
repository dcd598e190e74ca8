// Selection in the runtime: decisions are cached, explain matches real calls, and rules that are
// not followed are reported.
#include <isthmus/tools.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/support.hpp"
#include "core/test_call.hpp"

namespace {

using json = nlohmann::json;

json read(isthmus_communicator rank, const isthmus_operation* operation) {
  const auto write = [&](char* text, size_t capacity, size_t* required_bytes) {
    return operation == nullptr ? isthmus_communicator_info(rank, text, capacity, required_bytes)
                                : isthmus_communicator_explain(rank, operation, text, capacity, required_bytes);
  };
  size_t required_bytes = 0;
  EXPECT_EQ(write(nullptr, 0, &required_bytes), ISTHMUS_SUCCESS) << test::last_error().message;
  std::string text(required_bytes, '\0');
  EXPECT_EQ(write(text.data(), text.size(), nullptr), ISTHMUS_SUCCESS);
  EXPECT_EQ(text.back(), '\0');
  text.pop_back();
  return json::parse(text);
}

std::string configuration_with_rules(const std::string& rules) {
  return "[plugins]\nstandin = \"" + standin::path() + "\"\n" + rules;
}

TEST(decisions, are_cached_per_kind_of_call) {
  standin::reset();
  test::ranks ranks(2, standin::configuration());
  float send[64], recv[64];
  const auto call = [&](std::uint64_t count, isthmus_datatype datatype, isthmus_reduction_op op) {
    EXPECT_EQ(isthmus_allreduce(send, recv, count, datatype, op, ranks[0], nullptr), ISTHMUS_SUCCESS);
  };
  call(4, ISTHMUS_FLOAT32, ISTHMUS_SUM);
  const int first = standin::supports_calls();
  EXPECT_GT(first, 0);
  for (int i = 0; i < 100; ++i) call(4, ISTHMUS_FLOAT32, ISTHMUS_SUM);
  EXPECT_EQ(standin::supports_calls(), first);
  call(5, ISTHMUS_FLOAT32, ISTHMUS_SUM);
  call(4, ISTHMUS_INT32, ISTHMUS_SUM);
  call(4, ISTHMUS_FLOAT32, ISTHMUS_MAX);
  EXPECT_EQ(standin::supports_calls(), 4 * first);
  standin::reset();
}

// Many alternating kinds of calls collide in the decision cache, as in an exchange of 26
// messages with 7 neighbors.
TEST(decisions, survive_many_alternating_kinds) {
  standin::reset();
  test::ranks ranks(2, standin::configuration());
  std::vector<float> send(4096), recv(4096);
  const auto call_all = [&] {
    for (std::uint64_t i = 0; i < 96; ++i)
      EXPECT_EQ(isthmus_allreduce(send.data(), recv.data(), 1 + i * i * 37 % 4096, ISTHMUS_FLOAT32, ISTHMUS_SUM,
                                  ranks[0], nullptr),
                ISTHMUS_SUCCESS);
  };
  call_all();
  const int first = standin::supports_calls();
  for (int i = 0; i < 3; ++i) call_all();
  EXPECT_EQ(standin::supports_calls(), first);
  standin::reset();
}

// The stand-in does not guarantee rank-ordered reductions; `shm` does.
TEST(deterministic, float_sums_use_rank_ordered_backends) {
  standin::reset();
  const std::string rules =
      "deterministic = true\n" + configuration_with_rules("[[rule]]\nuse = \"standin\"\n");
  test::ranks ranks(2, rules);
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  const auto path = [&](isthmus_collective collective, isthmus_datatype datatype) {
    isthmus_operation operation{};
    operation.collective = collective;
    operation.datatype = datatype;
    operation.count = 4;
    return read(ranks[0], &operation);
  };
  for (const auto datatype : {ISTHMUS_FLOAT32, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT8_E5M2}) {
    const json explanation = path(ISTHMUS_ALLREDUCE, datatype);
    EXPECT_EQ(explanation["backend"], "shm") << explanation.dump();
    ASSERT_FALSE(explanation["not_used"].empty()) << "the skipped rule is not reported";
    EXPECT_NE(explanation["not_used"].front()["reason"].get<std::string>().find("deterministic: "),
              std::string::npos);
  }
  EXPECT_EQ(path(ISTHMUS_ALLREDUCE, ISTHMUS_INT32)["backend"], "standin");
  EXPECT_EQ(path(ISTHMUS_BROADCAST, ISTHMUS_FLOAT32)["backend"], "standin");
}

TEST(deterministic, fails_without_rank_ordered_backend) {
  standin::reset();
  ::setenv("ISTHMUS_BACKEND", "standin", 1);
  test::ranks ranks(1, "deterministic = true\n" + configuration_with_rules(""));
  ::unsetenv("ISTHMUS_BACKEND");
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  float send = 1, recv = 2;
  EXPECT_EQ(isthmus_allreduce(&send, &recv, 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, ranks[0], nullptr),
            ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(test::last_error().message).find("rank-ordered reductions"), std::string::npos)
      << test::last_error().message;
  EXPECT_EQ(recv, 2);
}

TEST(deterministic, accepts_sums_of_two_ranks_that_are_rounded_once) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_ROUNDS_ONCE;
  standin::reset(script);
  const auto backend_of = [](const test::ranks& ranks, isthmus_datatype datatype, isthmus_reduction_op op) {
    isthmus_operation operation{};
    operation.collective = ISTHMUS_ALLREDUCE;
    operation.datatype = datatype;
    operation.op = op;
    operation.count = 4;
    const json explanation = read(ranks[0], &operation);
    EXPECT_TRUE(explanation["reduction"]["is_guaranteed"].get<bool>()) << explanation.dump();
    return explanation["backend"].get<std::string>();
  };
  const std::string rules =
      "deterministic = true\n" + configuration_with_rules("[[rule]]\nuse = \"standin\"\n");
  for (const int size : {2, 3}) {
    test::ranks ranks(size, rules);
    ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
    const std::string expected = size == 2 ? "standin" : "shm";
    for (const isthmus_datatype datatype :
         {ISTHMUS_FLOAT16, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT32, ISTHMUS_FLOAT64}) {
      EXPECT_EQ(backend_of(ranks, datatype, ISTHMUS_SUM), expected);
      EXPECT_EQ(backend_of(ranks, datatype, ISTHMUS_PROD), expected);
      EXPECT_EQ(backend_of(ranks, datatype, ISTHMUS_AVG), "shm") << "NCCL divides first";
      EXPECT_EQ(backend_of(ranks, datatype, ISTHMUS_MIN), "shm") << "the sign of zero depends on the order";
    }
    EXPECT_EQ(backend_of(ranks, ISTHMUS_FLOAT8_E4M3, ISTHMUS_SUM), "shm");
  }
  standin::reset();
}

TEST(deterministic, refuses_algorithms_that_round_contributions) {
  standin::script script;
  script.capabilities = ISTHMUS_BACKEND_RANK_ORDER;
  standin::reset(script);
  for (const bool is_deterministic : {false, true}) {
    test::ranks ranks(2, (is_deterministic ? "deterministic = true\n" : "") +
                             configuration_with_rules("[[rule]]\nuse = \"standin:slow\"\n"
                                                      "[[rule]]\nuse = \"standin:slow_bf16\"\n"));
    ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
    isthmus_operation operation{};
    operation.collective = ISTHMUS_ALLREDUCE;
    operation.datatype = ISTHMUS_FLOAT32;
    operation.count = 4;
    const json explanation = read(ranks[0], &operation);
    EXPECT_EQ(explanation["algorithm"], is_deterministic ? "slow" : "slow_bf16") << explanation.dump();
    const std::string reason =
        is_deterministic ? explanation["not_used"].at(0)["reason"].get<std::string>() : "";
    EXPECT_EQ(reason.find("deterministic: the algorithm rounds contributions to bfloat16") != std::string::npos,
              is_deterministic);
  }
  standin::reset();
}

TEST(explain, shows_order_and_rounding_of_float_reductions) {
  standin::reset();
  test::ranks ranks(3, configuration_with_rules("[[rule]]\nbytes = \"..1K\"\nuse = \"shm\"\n"
                                                "[[rule]]\nbytes = \"1K..\"\nuse = \"standin\"\n"));
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  const auto explain = [&](isthmus_datatype datatype, isthmus_reduction_op op, std::uint64_t count = 4) {
    isthmus_operation operation{};
    operation.collective = ISTHMUS_ALLREDUCE;
    operation.datatype = datatype;
    operation.op = op;
    operation.count = count;
    return read(ranks[0], &operation)["reduction"];
  };
  const json sum = explain(ISTHMUS_FLOAT64, ISTHMUS_SUM), average = explain(ISTHMUS_FLOAT16, ISTHMUS_AVG);
  EXPECT_EQ(sum, (json{{"is_required", false},
                       {"is_guaranteed", true},
                       {"order", "rank 0, 1, 2, from left to right"},
                       {"rounding", "each sum to float64"}}));
  EXPECT_EQ(average["rounding"], "each sum to float32, the quotient to float32, the result to float16");
  EXPECT_EQ(explain(ISTHMUS_FLOAT16, ISTHMUS_MAX)["rounding"], "none");
  EXPECT_TRUE(explain(ISTHMUS_INT32, ISTHMUS_SUM).is_null());
  EXPECT_FALSE(explain(ISTHMUS_FLOAT32, ISTHMUS_SUM, 4096)["is_guaranteed"].get<bool>());
}

TEST(deterministic, refuses_external_backends) {
  const isthmus_device device{};
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.external_backends = "mpi";
  for (const char* const setting : {"0", "1"}) {
    ::setenv("ISTHMUS_RULE", "use=mpi", 1);
    ::setenv("ISTHMUS_DETERMINISTIC", setting, 1);
    isthmus_communicator rank = nullptr;
    const isthmus_status status = isthmus_communicator_create_all(1, &device, &options, &rank);
    ::unsetenv("ISTHMUS_DETERMINISTIC");
    ::unsetenv("ISTHMUS_RULE");
    ASSERT_EQ(status, ISTHMUS_SUCCESS) << test::last_error().message;
    isthmus_operation operation{};
    operation.collective = ISTHMUS_ALLREDUCE;
    operation.datatype = ISTHMUS_FLOAT32;
    operation.count = 4;
    char path[16] = "unset";
    EXPECT_EQ(isthmus_communicator_path(rank, &operation, path, sizeof path), ISTHMUS_SUCCESS);
    EXPECT_EQ(std::string(path) == "mpi", *setting == '0') << path;
    EXPECT_EQ(isthmus_communicator_destroy(rank), ISTHMUS_SUCCESS);
  }
}

// Kinds of calls share cache slots, but every call must get its own decision.
TEST(decisions, are_separate_for_each_kind_of_call) {
  standin::reset();
  test::ranks ranks(
      1, configuration_with_rules(
             "[[rule]]\nuse = \"standin:fast\"\n[[rule]]\nbytes = \"1K..\"\nuse = \"standin:slow\"\n"));
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  std::vector<float> send(4096), recv(4096);
  for (int round = 0; round < 2; ++round)
    for (std::uint64_t count = 0; count < 2000; ++count) {
      standin::reset();
      ASSERT_EQ(
          isthmus_allreduce(send.data(), recv.data(), count, ISTHMUS_INT8, ISTHMUS_SUM, ranks[0], nullptr),
          ISTHMUS_SUCCESS);
      ASSERT_EQ(standin::records().at(0).algorithms.at(0), count < 1024 ? "fast" : "slow") << count;
    }
}

TEST(explain, matches_the_call_for_every_collective) {
  standin::reset();
  test::ranks ranks(
      3, configuration_with_rules(
             "[[rule]]\nuse = \"standin:fast\"\n[[rule]]\nbytes = \"41..\"\nuse = \"standin:slow\"\n"));
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  for (const test::row& row : test::rows()) {
    SCOPED_TRACE(row.name);
    test::test_call example(row, 0, 3, 1);
    auto query = example.operation;
    query.send_buf = nullptr;
    query.recv_buf = nullptr;
    const json explanation = read(ranks[0], &query);
    standin::reset();
    ASSERT_EQ(isthmus_enqueue(ranks[0], &example.operation), ISTHMUS_SUCCESS);
    EXPECT_EQ(explanation["backend"], "standin");
    EXPECT_EQ(explanation["algorithm"], standin::records().at(0).algorithms.at(0));
    EXPECT_EQ(explanation["version"], "standin 1.0");
    EXPECT_TRUE(explanation["supports"]["standin"].is_null());
    EXPECT_TRUE(explanation["supports"].contains("shm"));
  }
}

TEST(explain, lists_rules_that_are_not_followed) {
  standin::script script;
  script.supports = [](const isthmus_operation&, int algorithm) {
    return algorithm == 0 ? "the fast path is closed" : nullptr;
  };
  standin::reset(script);
  test::ranks ranks(
      1, configuration_with_rules("[[rule]]\nuse = \"standin:slow\"\n[[rule]]\nuse = \"standin:fast\"\n"));
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BARRIER;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(isthmus_enqueue(ranks[0], &operation), ISTHMUS_SUCCESS);
  const std::string log = testing::internal::GetCapturedStderr();
  const auto first = log.find("the fast path is closed");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("the fast path is closed", first + 1), std::string::npos) << "logged once, not per call";
  const json explanation = read(ranks[0], &operation);
  EXPECT_EQ(explanation["algorithm"], "slow");
  ASSERT_EQ(explanation["not_used"].size(), 1u);
  EXPECT_NE(explanation["not_used"][0]["reason"].get<std::string>().find("the fast path is closed"),
            std::string::npos);
}

TEST(explain, profile_rule_without_backend_logs_no_warning) {
  standin::script script;
  script.supports = [](const isthmus_operation&, int algorithm) {
    return algorithm == 0 ? "the fast path is closed" : nullptr;
  };
  standin::reset(script);
  const std::string profile = testing::TempDir() + "profile.toml";
  std::ofstream(profile) << "[[rule]]\nuse = \"standin:fast\"\n";
  ::setenv("ISTHMUS_PROFILE", profile.c_str(), 1);
  test::ranks ranks(1, configuration_with_rules(""));
  ::unsetenv("ISTHMUS_PROFILE");
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BARRIER;
  testing::internal::CaptureStderr();
  EXPECT_EQ(isthmus_enqueue(ranks[0], &operation), ISTHMUS_SUCCESS);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(read(ranks[0], &operation)["not_used"].size(), 1u);
}

TEST(explain, reports_that_no_backend_is_available) {
  standin::script script;
  script.supports = [](const isthmus_operation&, int) { return "never"; };
  standin::reset(script);
  test::ranks ranks(1, standin::configuration(), ISTHMUS_PLATFORM_OPENCL);
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BARRIER;
  const json explanation = read(ranks[0], &operation);
  EXPECT_TRUE(explanation["backend"].is_null());
  EXPECT_EQ(explanation["supports"]["standin"], "never");
  EXPECT_EQ(isthmus_enqueue(ranks[0], &operation), ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(test::last_error().message).find("never"), std::string::npos);
  EXPECT_EQ(isthmus_communicator_async_error(ranks[0]), ISTHMUS_SUCCESS)
      << "no operation started, so the communicator is not aborted";
}

TEST(explain, rejects_invalid_arguments) {
  standin::reset();
  test::ranks ranks(2, standin::configuration());
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BROADCAST;
  operation.root = 7;
  char text[16];
  EXPECT_EQ(isthmus_communicator_explain(ranks[0], &operation, text, sizeof text, nullptr),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_communicator_explain(ranks[0], nullptr, text, sizeof text, nullptr),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  operation.root = 0;
  EXPECT_EQ(isthmus_communicator_explain(ranks[0], &operation, nullptr, 5, nullptr),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  std::fill(std::begin(text), std::end(text), 'x');
  size_t required_bytes = 0;
  EXPECT_EQ(isthmus_communicator_explain(ranks[0], &operation, text, 8, &required_bytes), ISTHMUS_SUCCESS);
  EXPECT_EQ(text[7], '\0') << "truncated and terminated";
  EXPECT_EQ(text[8], 'x');
  EXPECT_GT(required_bytes, 8u);
}

TEST(info, lists_ranks_backends_and_rules) {
  standin::reset();
  test::ranks ranks(3, standin::configuration());
  const json info = read(ranks[1], nullptr);
  EXPECT_EQ(info["rank"], 1);
  EXPECT_EQ(info["size"], 3);
  EXPECT_EQ(info["local_size"], 3);
  EXPECT_EQ(info["nodes"], 1);
  EXPECT_EQ(info["bootstrap"], "store");
  EXPECT_EQ(info["state"], "ok");
  bool match = false;
  for (const auto& backend : info["backends"])
    if (backend["name"] == "standin") {
      match = true;
      EXPECT_EQ(backend["state"], "available");
      EXPECT_EQ(backend["algorithms"], (std::vector<std::string>{"fast", "slow", "slow_bf16"}));
      EXPECT_EQ(backend["source"], standin::path());
    } else if (backend["state"] != "available") {
      EXPECT_NE(backend["reason"], "") << backend["name"];
    }
  EXPECT_TRUE(match);
  isthmus_communicator_abort(ranks[1]);
  EXPECT_NE(read(ranks[0], nullptr)["state"], "ok");
}

TEST(info, backend_without_rule_is_not_created) {
  standin::reset();
  test::ranks ranks(2, configuration_with_rules("[[rule]]\nuse = \"shm\"\n"));
  EXPECT_EQ(standin::live_states(), 0);
  const json info = read(ranks[0], nullptr);
  const auto match =
      std::ranges::find_if(info["backends"], [](const json& entry) { return entry["name"] == "standin"; });
  ASSERT_NE(match, info["backends"].end());
  EXPECT_EQ((*match)["state"], "not_used");
  EXPECT_EQ((*match)["reason"], "no rule names it");
}

// Creates two ranks in threads, each with its own options, and returns their statuses.
std::vector<isthmus_status> create_pair(const isthmus_communicator_options* options,
                                        isthmus_communicator* communicators) {
  isthmus_unique_id id;
  EXPECT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS);
  std::vector<isthmus_status> statuses(2);
  test::run_on_each_rank(2, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    statuses[index] = isthmus_communicator_create(&id, rank, 2, &options[index], &communicators[index]);
    if (statuses[index] == ISTHMUS_ERROR_MISMATCH) {
      const std::string message = test::last_error().message;
      EXPECT_NE(message.find("collectives 0x"), std::string::npos) << message;
    }
  });
  return statuses;
}

constexpr std::uint32_t messages = 1u << ISTHMUS_SEND | 1u << ISTHMUS_RECV;

TEST(collectives_of_a_communicator, others_create_no_backend_and_fail) {
  standin::reset();
  const test::scoped_file config(configuration_with_rules(
      "[[rule]]\nuse = \"shm\"\n[[rule]]\ncollective = \"allreduce\"\nuse = \"standin\"\n"));
  const isthmus_communicator_options base_options = test::options_for(config);
  isthmus_communicator_options options[2] = {base_options, base_options};
  isthmus_communicator communicators[2] = {};
  ASSERT_EQ(create_pair(options, communicators), std::vector(2, ISTHMUS_SUCCESS)) << test::last_error().message;
  EXPECT_EQ(standin::live_states(), 2);
  for (auto& entry : communicators) isthmus_communicator_destroy(entry);

  options[0].collectives = options[1].collectives = messages;
  ASSERT_EQ(create_pair(options, communicators), std::vector(2, ISTHMUS_SUCCESS)) << test::last_error().message;
  EXPECT_EQ(standin::live_states(), 0);
  const json info = read(communicators[0], nullptr);
  const auto match =
      std::ranges::find_if(info["backends"], [](const json& entry) { return entry["name"] == "standin"; });
  EXPECT_EQ((*match)["state"], "not_used");
  EXPECT_EQ((*match)["reason"], "no rule names it for the collectives of this communicator");

  float buffer[2] = {1, 2};
  EXPECT_EQ(isthmus_allreduce(buffer, buffer, 2, ISTHMUS_FLOAT32, ISTHMUS_SUM, communicators[0], nullptr),
            ISTHMUS_ERROR_INVALID_USAGE);
  EXPECT_NE(std::string(test::last_error().message).find("allreduce"), std::string::npos);
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  EXPECT_EQ(isthmus_communicator_explain(communicators[0], &operation, nullptr, 0, nullptr),
            ISTHMUS_ERROR_INVALID_USAGE);
  test::run_on_each_rank(2, [&](int rank) {
    const isthmus_status status =
        rank == 0 ? isthmus_send(buffer, 1, ISTHMUS_FLOAT32, 1, communicators[0], nullptr)
                  : isthmus_recv(buffer + 1, 1, ISTHMUS_FLOAT32, 0, communicators[1], nullptr);
    EXPECT_EQ(status, ISTHMUS_SUCCESS) << test::last_error().message;
  });
  EXPECT_EQ(buffer[1], 1);
  for (auto& entry : communicators) isthmus_communicator_destroy(entry);

  options[0].collectives = options[1].collectives = messages | 1u << ISTHMUS_ALLREDUCE;
  ASSERT_EQ(create_pair(options, communicators), std::vector(2, ISTHMUS_SUCCESS)) << test::last_error().message;
  EXPECT_EQ(standin::context_of(1)->collectives, options[1].collectives);
  for (auto& entry : communicators) isthmus_communicator_destroy(entry);
}

TEST(collectives_of_a_communicator, must_be_equal_on_all_ranks) {
  const test::scoped_file config(test::host_config);
  const isthmus_communicator_options base_options = test::options_for(config);
  isthmus_communicator_options options[2] = {base_options, base_options};
  isthmus_communicator communicators[2] = {};
  options[1].collectives = messages;
  EXPECT_EQ(create_pair(options, communicators), std::vector(2, ISTHMUS_ERROR_MISMATCH));
  options[0].collectives = 1u << ISTHMUS_COLLECTIVE_COUNT;
  const isthmus_device host{ISTHMUS_PLATFORM_HOST, 0};
  EXPECT_EQ(isthmus_communicator_create_all(1, &host, &options[0], communicators),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(test::last_error().message).find("collectives"), std::string::npos);
}

TEST(backend_context, provides_options_logs_and_heap) {
  standin::reset();
  test::ranks ranks(2, standin::configuration() + "[backend.standin]\nspeed = 11\nname = \"x\"\n");
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  const auto* context = standin::context_of(1);
  ASSERT_NE(context, nullptr);
  EXPECT_STREQ(context->option(context->runtime, "speed"), "11");
  EXPECT_STREQ(context->option(context->runtime, "name"), "x");
  EXPECT_EQ(context->option(context->runtime, "other"), nullptr);
  EXPECT_EQ(context->rank, 1);
  EXPECT_EQ(context->size, 2);
  EXPECT_EQ(context->process_size, 2);
  EXPECT_EQ(context->node_size, 2);
  EXPECT_EQ(context->struct_bytes, sizeof *context);
  EXPECT_EQ(context->node_rank, 1);
  EXPECT_EQ(context->timeout_s, 10);
  EXPECT_EQ(context->collectives, 0u);
  EXPECT_EQ(context->device.platform, ISTHMUS_PLATFORM_HOST);
  EXPECT_EQ(context->device.ordinal, 0);
  EXPECT_EQ(context->mpi, nullptr);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(context->pid_of[rank], getpid());
    EXPECT_EQ(context->node_of[rank], context->node_of[0]);
    EXPECT_EQ(context->process_of[rank], context->process_of[0]);
  }
  EXPECT_EQ(context->is_aborted(context->runtime), 0);
  EXPECT_EQ(context->heap_find(context->runtime, context, 1, nullptr, nullptr), 0);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) context->log(context->runtime, 2, "the copy engine has %d lanes", 0);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("the copy engine has 0 lanes"), std::string::npos);
  EXPECT_EQ(log.find("copy engine", log.find("copy engine") + 1), std::string::npos);
  isthmus_operation operation{};
  operation.collective = ISTHMUS_BARRIER;
  EXPECT_EQ(read(ranks[1], &operation)["notes"], (std::vector<std::string>{"the copy engine has 0 lanes"}));
}

}  // namespace
