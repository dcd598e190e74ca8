// What a backend owes the runtime beyond right results. Every test runs in a process of its own, because a
// process loads a vendor library once.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "harness.hpp"
#include "standin_control.hpp"

namespace {

using harness::rank_group;
using harness::rank;
using harness::settings;
using steering::allreduce;
using steering::calls;
using steering::device;
using steering::fail_next;
using steering::live;
using steering::steer;

void expect_refused(const settings& requested, const std::string& part_of_reason) {
  rank_group group(requested);
  for (int me = 0; me < group.size(); ++me) {
    EXPECT_EQ(group.at(me).created, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_EQ(group.at(me).state, nullptr);
    EXPECT_NE(group.at(me).last.message.find(part_of_reason), std::string::npos) << group.at(me).last.message;
    EXPECT_NE(group.at(me).last.hint, "");
  }
}

TEST(machine, without_the_library_is_a_reasoned_skip) {
  settings requested;
  requested.options["library"] = "/nowhere/libnccl.so.2";
  expect_refused(requested, "/nowhere/libnccl.so.2");
}

TEST(machine, with_a_file_that_is_no_library) {
  settings requested;
  requested.options["library"] = harness::standin_path("standin_device");
  expect_refused(requested, "does not look like NCCL");
}

// The library for unchanged programs has NCCL's name, and stands before it.
TEST(machine, with_a_library_that_stands_before_nccl) {
  setenv("ISTHMUS_NCCL_LIBRARY", harness::standin_path("standin_nccl").c_str(), 1);
  settings requested;
  requested.options["library"] = NCCL_PRELOAD;
  if (requested.options["library"].empty()) GTEST_SKIP() << "not built on this processor";
  rank_group group(requested);
  unsetenv("ISTHMUS_NCCL_LIBRARY");
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  ASSERT_EQ(group.at(0).log.size(), 1U);
  EXPECT_NE(group.at(0).log[0].find("libstandin_nccl.so"), std::string::npos) << group.at(0).log[0];
}

TEST(machine, with_too_old_a_library) {
  steer<decltype(&standin_set_version)>("standin_set_version")(21003);
  expect_refused({}, "NCCL 2.10.3; 2.18.1 or newer");
}

TEST(machine, with_a_library_that_lacks_a_function) {
  settings requested;
  requested.options["library"] = harness::standin_path("standin_nccl_incomplete");
  expect_refused(requested, "lacks ncclSend");
}

TEST(machine, without_a_device) {
  device<decltype(&standin_set_device_count)>("standin_set_device_count")(0);
  expect_refused({}, "finds no device: no device is detected");
}

TEST(machine, with_too_few_devices) {
  device<decltype(&standin_set_device_count)>("standin_set_device_count")(1);
  expect_refused({}, "rank 1: device 1 does not exist; this machine has 1");
}

TEST(machine, two_ranks_on_one_device_are_refused_before_the_library_hangs) {
  device<decltype(&standin_alias_device)>("standin_alias_device")(2, 0);
  settings requested;
  requested.size = 3;
  expect_refused(requested, "ranks 0 and 2 are on the same device (0000:01:00.0)");
  EXPECT_EQ(calls().find("ncclCommInitRankConfig"), std::string::npos);
}

TEST(machine, of_another_platform) {
  settings requested;
  requested.platform = ISTHMUS_PLATFORM_HIP;
  expect_refused(requested, "platform cuda");
}

TEST(creation, failure_of_one_rank_reaches_all_with_the_native_code) {
  fail_next("ncclCommInitRankConfig", 1, 2);
  settings requested;
  requested.timeout_s = 2;
  rank_group group(requested);
  int native = 0;
  for (int me = 0; me < group.size(); ++me) {
    EXPECT_NE(group.at(me).created, ISTHMUS_SUCCESS);
    EXPECT_NE(group.at(me).created, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_EQ(group.at(me).state, nullptr);
    if (group.at(me).last.native_code == 2) {
      ++native;
      EXPECT_NE(group.at(me).last.message.find("ncclSystemError"), std::string::npos)
          << group.at(me).last.message;
    }
  }
  EXPECT_EQ(native, 1);
  EXPECT_EQ(live(), 0);
}

TEST(creation, that_never_ends_is_given_up_after_the_timeout) {
  steer<decltype(&standin_hang_init)>("standin_hang_init")(1);
  settings requested;
  requested.timeout_s = 0.5;
  const auto start = std::chrono::steady_clock::now();
  rank_group group(requested);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  for (int me = 0; me < group.size(); ++me) {
    EXPECT_EQ(group.at(me).created, ISTHMUS_ERROR_TIMEOUT);
    EXPECT_NE(group.at(me).last.message.find("0.5 s"), std::string::npos) << group.at(me).last.message;
  }
  EXPECT_EQ(live(), 0);
}

TEST(life, version_and_path_are_reported_and_everything_is_released) {
  rank_group group({});
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  EXPECT_STREQ(group.backend().version(group.at(0).state), "2.28.9");
  ASSERT_EQ(group.at(0).log.size(), 1U);
  EXPECT_NE(group.at(0).log[0].find("libstandin_nccl.so"), std::string::npos);
  EXPECT_EQ(live(), 4);  // an anchor and a worker for each rank
  group.destroy();
  EXPECT_EQ(live(), 0);
}

// The producer is held back on the device: the call must return before it runs, and the result must still
// contain what it wrote.
TEST(order, enqueue_returns_before_the_producer_and_the_result_follows_it) {
  rank_group group({});
  std::atomic<bool> release{false};
  std::vector<std::vector<float>> data(2, std::vector<float>(5000, -1.0F));
  std::atomic<int> returned{0};
  struct producer {
    std::atomic<bool>* release;
    std::vector<float>* data;
    float value;
  };
  std::vector<producer> producers;
  for (int me = 0; me < 2; ++me)
    producers.push_back({&release, &data[static_cast<std::size_t>(me)], static_cast<float>(me + 1)});
  group.each([&](rank& self) {
    const auto me = static_cast<std::size_t>(self.context.rank);
    device<int (*)(void*, void (*)(void*), void*)>("cudaLaunchHostFunc")(
        self.stream,
        [](void* argument) {
          auto& work = *static_cast<producer*>(argument);
          while (!*work.release) std::this_thread::yield();
          std::fill(work.data->begin(), work.data->end(), work.value);
        },
        &producers[me]);
    const isthmus_operation operation = allreduce(self, data[me].data(), data[me].size());
    EXPECT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS);
    if (++returned == 2) {
      EXPECT_EQ(data[0][0], -1.0F);
      release = true;
    }
    group.synchronize(self);
    EXPECT_EQ(data[me], std::vector<float>(5000, 3.0F));
  });
}

TEST(order, one_thread_drives_all_ranks_inside_a_group) {
  settings requested;
  requested.size = 4;
  rank_group group(requested);
  std::vector<std::vector<float>> data;
  for (int me = 0; me < 4; ++me) data.emplace_back(1000, static_cast<float>(1 << me));
  ASSERT_EQ(group.backend().group_start(), ISTHMUS_SUCCESS);
  for (int me = 0; me < 4; ++me) {
    const isthmus_operation operation =
        allreduce(group.at(me), data[static_cast<std::size_t>(me)].data(), 1000);
    ASSERT_EQ(group.backend().enqueue(group.at(me).state, &operation, nullptr, 1), ISTHMUS_SUCCESS);
  }
  ASSERT_EQ(group.backend().group_end(), ISTHMUS_SUCCESS);
  for (int me = 0; me < 4; ++me) {
    group.synchronize(group.at(me));
    EXPECT_EQ(data[static_cast<std::size_t>(me)], std::vector<float>(1000, 15.0F));
  }
}

// The library sees a neighbour exchange whole: one group, after all sends and receives.
TEST(order, messages_of_a_group_are_one_native_group) {
  rank_group group({});
  steer<decltype(&standin_clear_calls)>("standin_clear_calls")();
  group.each([&](rank& self) {
    const int me = self.context.rank;
    std::vector<float> sent(26), received(26, -1);
    std::vector<isthmus_operation> messages;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      sent[i] = static_cast<float>(100 * me) + static_cast<float>(i);
      for (const auto collective : {ISTHMUS_SEND, ISTHMUS_RECV}) {
        isthmus_operation& message = messages.emplace_back(allreduce(self, nullptr, 1));
        message.collective = collective;
        message.root = 1 - me;
        message.send_buf = collective == ISTHMUS_SEND ? &sent[i] : nullptr;
        message.recv_buf = collective == ISTHMUS_RECV ? &received[i] : nullptr;
      }
    }
    EXPECT_EQ(group.backend().enqueue(self.state, messages.data(), nullptr, messages.size()), ISTHMUS_SUCCESS);
    group.synchronize(self);
    for (std::size_t i = 0; i < sent.size(); ++i)
      EXPECT_EQ(received[i], static_cast<float>(100 * (1 - me)) + static_cast<float>(i));
  });
  const std::string all = calls();
  const auto count = [&](const std::string& name) {
    std::size_t found = 0;
    for (std::size_t at = all.find(name); at != std::string::npos; at = all.find(name, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("ncclSend\n"), 52U) << "26 of each rank";
  EXPECT_EQ(count("ncclRecv\n"), 52U);
  EXPECT_EQ(count("ncclGroupEnd\n"), 2U) << "one of each rank";
}

// What the only rank keeps of a collective that the library has no function for is a copy.
TEST(order, the_only_ranks_own_block_is_copied) {
  settings requested;
  requested.size = 1;
  rank_group group(requested);
  group.each([&](rank& self) {
    const std::vector<float> sent{1, 2, 3, 4};
    std::vector<float> received(6, -1);
    const std::uint64_t counts = 3, from = 1, to = 2;
    isthmus_operation operation = allreduce(self, received.data(), 0);
    operation.collective = ISTHMUS_ALLTOALLV;
    operation.send_buf = sent.data();
    operation.send_counts = operation.recv_counts = &counts;
    operation.send_displs = &from;
    operation.recv_displs = &to;
    steer<decltype(&standin_clear_calls)>("standin_clear_calls")();
    EXPECT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS);
    group.synchronize(self);
    EXPECT_EQ(calls(), "");
    EXPECT_EQ(received, (std::vector<float>{-1, -1, 2, 3, 4, -1}));
  });
}

TEST(order, an_operation_is_one_native_call_where_the_library_has_it) {
  rank_group group({});
  steer<decltype(&standin_clear_calls)>("standin_clear_calls")();
  std::vector<float> data(10, 1.0F), other(10, 1.0F);
  group.each([&](rank& self) {
    const isthmus_operation operation =
        allreduce(self, self.context.rank == 0 ? data.data() : other.data(), 10);
    group.backend().enqueue(self.state, &operation, nullptr, 1);
    group.synchronize(self);
  });
  EXPECT_EQ(calls(), "ncclAllReduce\nncclAllReduce\n");
}

TEST(in_place, alltoall_sends_from_a_copy) {
  settings requested;
  requested.size = 3;
  rank_group group(requested);
  group.each([&](rank& self) {
    const int me = self.context.rank;
    std::vector<int> data;
    for (int peer = 0; peer < 3; ++peer)
      for (int i = 0; i < 20000; ++i) data.push_back(100 * me + peer);
    isthmus_operation operation{};
    operation.collective = ISTHMUS_ALLTOALL;
    operation.datatype = ISTHMUS_INT32;
    operation.count = 20000;
    operation.send_buf = operation.recv_buf = data.data();
    operation.stream = self.stream;
    ASSERT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS)
        << self.last.message;
    group.synchronize(self);
    for (int peer = 0; peer < 3; ++peer)
      for (int i = 0; i < 20000; ++i)
        ASSERT_EQ(data[static_cast<std::size_t>(peer * 20000 + i)], 100 * peer + me);
  });
}

TEST(failure, of_a_native_call_keeps_code_text_and_hint) {
  rank_group group({});
  fail_next("ncclAllReduce", 1, 5);
  float value = 7;
  const isthmus_operation operation = allreduce(group.at(0), &value, 1);
  EXPECT_EQ(group.backend().enqueue(group.at(0).state, &operation, nullptr, 1), ISTHMUS_ERROR_BACKEND);
  const harness::failure& what = group.at(0).last;
  EXPECT_EQ(what.native_code, 5);
  EXPECT_NE(what.message.find("ncclAllReduce"), std::string::npos) << what.message;
  EXPECT_NE(what.message.find("ncclInvalidUsage"), std::string::npos);
  EXPECT_NE(what.message.find("the test asked for this failure"), std::string::npos);
  EXPECT_NE(what.hint.find("order of calls"), std::string::npos);
  EXPECT_NE(what.location.find("src/backends/nccl_family/nccl_state.hpp:"), std::string::npos) << what.location;
  EXPECT_EQ(value, 7);
}

TEST(failure, of_another_process_is_remote) {
  rank_group group({});
  fail_next("ncclAllReduce", 1, 6);
  float value = 7;
  const isthmus_operation operation = allreduce(group.at(1), &value, 1);
  EXPECT_EQ(group.backend().enqueue(group.at(1).state, &operation, nullptr, 1), ISTHMUS_ERROR_REMOTE);
  EXPECT_EQ(group.at(1).last.native_code, 6);
}

TEST(failure, at_the_end_of_a_group_is_told_to_every_member) {
  rank_group group({});
  fail_next("ncclGroupEnd", 1, 3);
  float values[2] = {1, 2};
  ASSERT_EQ(group.backend().group_start(), ISTHMUS_SUCCESS);
  for (int me = 0; me < 2; ++me) {
    const isthmus_operation operation = allreduce(group.at(me), &values[me], 1);
    ASSERT_EQ(group.backend().enqueue(group.at(me).state, &operation, nullptr, 1), ISTHMUS_SUCCESS);
  }
  EXPECT_EQ(group.backend().group_end(), ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(group.at(0).last.native_code, 3);
  EXPECT_EQ(group.at(1).last.native_code, 3);
}

TEST(failure, inside_a_composed_operation_closes_its_group) {
  rank_group group({});
  float values[2] = {1, 2}, all[2] = {};
  const std::uint64_t counts[2] = {1, 1}, displs[2] = {0, 1};
  isthmus_operation operation = allreduce(group.at(0), values, 1);
  operation.collective = ISTHMUS_ALLGATHERV;
  operation.recv_buf = all;
  operation.recv_counts = counts;
  operation.recv_displs = displs;
  fail_next("ncclSend", 1, 4);
  EXPECT_EQ(group.backend().enqueue(group.at(0).state, &operation, nullptr, 1), ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(group.at(0).last.native_code, 4);
  EXPECT_EQ(device<int (*)()>("cudaDeviceSynchronize")(), 0);
  EXPECT_EQ(steer<int (*)()>("ncclGroupEnd")(), 5) << "a native group was left open";
}

// One rank's native operation breaks on the device; its peer waits for data that never comes.
TEST(failure, half_way_is_polled_and_abort_releases_the_waiting_peer) {
  rank_group group({});
  std::vector<float> data(100000, 1.0F), other(100000, 1.0F);
  steer<decltype(&standin_fail_half_way)>("standin_fail_half_way")(1);
  group.each([&](rank& self) {
    const isthmus_operation operation =
        allreduce(self, self.context.rank == 0 ? data.data() : other.data(), 100000);
    EXPECT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS);
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  int broken = -1;
  while (broken < 0 && std::chrono::steady_clock::now() < deadline)
    for (int me = 0; me < 2; ++me)
      if (group.backend().poll(group.at(me).state) != ISTHMUS_SUCCESS) broken = me;
  ASSERT_GE(broken, 0);
  EXPECT_EQ(group.at(broken).last.native_code, 1);
  EXPECT_NE(group.at(broken).last.message.find("ncclUnhandledCudaError"), std::string::npos);
  const auto start = std::chrono::steady_clock::now();
  group.abort();
  for (int me = 0; me < 2; ++me) group.synchronize(group.at(me));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  const isthmus_operation late = allreduce(group.at(0), data.data(), 1);
  EXPECT_EQ(group.backend().enqueue(group.at(0).state, &late, nullptr, 1), ISTHMUS_ERROR_ABORTED);
  group.destroy();
  EXPECT_EQ(live(), 0);
}

TEST(failure, synchronize_gives_up_after_the_timeout) {
  settings requested;
  requested.timeout_s = 0.3;
  rank_group group(requested);
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  float value = 1;
  const isthmus_operation alone = allreduce(group.at(0), &value, 1);  // rank 1 never comes
  ASSERT_EQ(group.backend().enqueue(group.at(0).state, &alone, nullptr, 1), ISTHMUS_SUCCESS);
  EXPECT_EQ(group.backend().synchronize(group.at(0).state), ISTHMUS_ERROR_TIMEOUT);
  group.abort();
}

TEST(support, says_why_not) {
  rank_group group({});
  isthmus_operation operation = allreduce(group.at(0), nullptr, 1);
  const auto reason = [&](const char* algorithm) {
    const char* text = group.backend().supports(group.at(0).state, &operation, algorithm);
    return std::string(text != nullptr ? text : "");
  };
  EXPECT_EQ(reason(nullptr), "");
  EXPECT_NE(reason("ring").find("name none"), std::string::npos);
  operation.datatype = ISTHMUS_INT16;
  EXPECT_NE(reason(nullptr).find("16-bit integer"), std::string::npos);
  operation.collective = ISTHMUS_ALLGATHER;
  EXPECT_EQ(reason(nullptr), "");
}

TEST(support, fp8_needs_a_version_that_has_it) {
  steer<decltype(&standin_set_version)>("standin_set_version")(22105);
  rank_group group({});
  isthmus_operation operation = allreduce(group.at(0), nullptr, 1);
  operation.datatype = ISTHMUS_FLOAT8_E4M3;
  const char* text = group.backend().supports(group.at(0).state, &operation, nullptr);
  ASSERT_NE(text, nullptr);
  EXPECT_NE(std::string(text).find("2.24"), std::string::npos);
}

TEST(barrier, is_passed_by_no_stream_before_all_have_entered) {
  rank_group group({});
  std::atomic<int> entered{0};
  group.each([&](rank& self) {
    if (self.context.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ++entered;
    isthmus_operation operation{};
    operation.collective = ISTHMUS_BARRIER;
    operation.stream = self.stream;
    EXPECT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS)
        << self.last.message;
    group.synchronize(self);
    EXPECT_EQ(entered, 2);
  });
}

}  // namespace
