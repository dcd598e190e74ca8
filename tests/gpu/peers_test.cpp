// Plug-ins of gpu_bench on the stand-ins: options, methods, results and errors.
#include "harness/gpu/peers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/gpu/check.hpp"

namespace {

using namespace gpu_bench;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t bytes = 20000;
const std::string stub = "stub=" STUB_PEER;

class peers : public testing::Test {
 protected:
  explicit peers(int ranks = 2) : m_thread(m_single_thread[0], 0, ranks) {
    m_thread.each([&](const device_lane& lane, std::size_t) {
      rank_buffers own;
      check(cudaMalloc(reinterpret_cast<void**>(&own.send), bytes));
      check(cudaMalloc(reinterpret_cast<void**>(&own.recv), bytes));
      fill_inputs(own.send, bytes, lane.rank);
      m_buffers.push_back(own);
    });
  }

  std::vector<peer_library> load(const std::vector<std::string>& options) const {
    return load_peers(options, m_thread, m_buffers, bytes);
  }
  std::vector<device_call> make_calls(const peer_library& peer,
                                      isthmus_datatype datatype = ISTHMUS_FLOAT32) const {
    const bench_case test_case{ISTHMUS_ALLREDUCE, bytes, datatype};
    return peer.make_calls(m_thread, test_case, m_buffers, allreduce_arguments(m_thread, test_case, m_buffers));
  }
  std::string load_error(const std::vector<std::string>& options) const {
    try {
      load(options);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

  bench::thread_ranks m_single_thread{1};
  device_thread m_thread;
  std::vector<rank_buffers> m_buffers;
};

class peers_of_three_ranks : public peers {
 protected:
  peers_of_three_ranks() : peers(3) {}
};

TEST_F(peers, supported_methods_are_calls) {
  const auto loaded = load({stub});
  ASSERT_EQ(loaded.size(), 1U);
  EXPECT_STREQ(loaded.front().version(), "stub 1.0");
  std::vector<std::string> methods;
  for (const device_call& call : make_calls(loaded.front())) {
    EXPECT_EQ(call.provider, "stub");
    EXPECT_EQ(call.mode, "graph");
    methods.push_back(call.backend);
  }
  EXPECT_THAT(methods, ElementsAre("sum", "incorrect", "failing"));
  EXPECT_TRUE(make_calls(loaded.front(), ISTHMUS_BFLOAT16).empty());
}

TEST_F(peers, results_are_compared_with_the_oracle) {
  const auto loaded = load({stub});
  const auto calls = make_calls(loaded.front());
  EXPECT_EQ(count_wrong(m_thread, calls[0]), 0U);
  EXPECT_EQ(count_wrong(m_thread, calls[1]), 2 * bytes / 4);
}

TEST_F(peers, errors_of_calls_name_the_peer) {
  const auto loaded = load({stub});
  const auto calls = make_calls(loaded.front());
  EXPECT_THAT([&] { calls[2].run(); },
              testing::ThrowsMessage<std::runtime_error>("--peer stub: the stub failed"));
}

TEST_F(peers, invalid_options_are_rejected) {
  for (const char* option : {"name", "=file", "name="})
    EXPECT_THAT(load_error({option}), HasSubstr("use NAME=FILE"));
  EXPECT_THAT(load_error({"missing=./missing.so"}), HasSubstr("--peer missing=./missing.so: "));
  EXPECT_THAT(load_error({"none=" STANDIN_DEVICE}), HasSubstr("does not export gpu_bench_peer_library()"));
  EXPECT_THAT(load_error({"old=" OLD_PEER}),
              HasSubstr("implements version 0 of peer.h; rebuild it with version 1"));
  EXPECT_THAT(load_error({stub, stub}), HasSubstr("use distinct names"));
}

TEST_F(peers_of_three_ranks, unsupported_groups_are_rejected) {
  EXPECT_EQ(load_error({stub}), "--peer stub: only 2 ranks are supported");
}

}  // namespace
