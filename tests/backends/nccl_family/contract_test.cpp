// The backend contract beyond correct results. Each test runs in its own process, because a process loads a
// vendor library only once.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "harness.hpp"
#include "standin_control.hpp"

namespace {

using harness::rank;
using harness::rank_group;
using harness::settings;
using steering::allreduce;
using steering::calls;
using steering::device;
using steering::expect_released;
using steering::fail_next;
using steering::live;
using steering::standin_symbol;

void expect_refused(const settings& config, const std::string& reason) {
  rank_group group(config);
  for (int me = 0; me < group.size(); ++me) {
    EXPECT_EQ(group.at(me).created, ISTHMUS_ERROR_UNSUPPORTED);
    EXPECT_EQ(group.at(me).state, nullptr);
    EXPECT_NE(group.at(me).last.message.find(reason), std::string::npos) << group.at(me).last.message;
    EXPECT_NE(group.at(me).last.hint, "");
  }
}

TEST(availability, missing_library_is_unsupported) {
  settings config;
  config.options["library"] = "/nowhere/libnccl.so.2";
  expect_refused(config, "/nowhere/libnccl.so.2");
}

TEST(availability, other_library_is_unsupported) {
  settings config;
  config.options["library"] = harness::standin_path("standin_device");
  expect_refused(config, "is not NCCL");
}

// The preload library has NCCL's soname and hides the real one.
TEST(availability, preload_library_leads_to_nccl) {
  setenv("ISTHMUS_NCCL_LIBRARY", harness::standin_path("standin_nccl").c_str(), 1);
  settings config;
  config.options["library"] = NCCL_PRELOAD;
  if (config.options["library"].empty()) GTEST_SKIP() << "not built on this processor";
  rank_group group(config);
  unsetenv("ISTHMUS_NCCL_LIBRARY");
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  ASSERT_EQ(group.at(0).log.size(), 1U);
  EXPECT_NE(group.at(0).log[0].find("libstandin_nccl.so"), std::string::npos) << group.at(0).log[0];
}

TEST(availability, old_library_is_unsupported) {
  standin_symbol<decltype(&standin_set_version)>("standin_set_version")(21003);
  expect_refused({}, "NCCL 2.10.3; 2.18.1 or newer");
}

TEST(availability, incomplete_library_is_unsupported) {
  settings config;
  config.options["library"] = harness::standin_path("standin_nccl_incomplete");
  expect_refused(config, "lacks ncclSend");
}

TEST(availability, no_device_is_unsupported) {
  device<decltype(&standin_set_device_count)>("standin_set_device_count")(0);
  expect_refused({}, "found no device: no device is detected");
}

TEST(availability, missing_device_ordinal_is_unsupported) {
  device<decltype(&standin_set_device_count)>("standin_set_device_count")(1);
  expect_refused({}, "rank 1: device 1 does not exist; number of devices on this machine: 1");
}

TEST(availability, shared_device_is_refused_before_init) {
  device<decltype(&standin_alias_device)>("standin_alias_device")(2, 0);
  settings config;
  config.size = 3;
  expect_refused(config, "ranks 0 and 2 use the same device (0000:01:00.0)");
  EXPECT_EQ(calls().find("ncclCommInitRankConfig"), std::string::npos);
}

TEST(availability, other_platform_is_unsupported) {
  settings config;
  config.platform = ISTHMUS_PLATFORM_HIP;
  expect_refused(config, "platform cuda");
}

TEST(creation, failure_of_one_rank_fails_all_ranks) {
  fail_next("ncclCommInitRankConfig", 1, 2);
  settings config;
  config.timeout_s = 2;
  rank_group group(config);
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
  expect_released();
}

TEST(creation, hanging_init_times_out) {
  standin_symbol<decltype(&standin_hang_init)>("standin_hang_init")(1);
  settings config;
  config.timeout_s = 0.5;
  const auto start = std::chrono::steady_clock::now();
  rank_group group(config);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  for (int me = 0; me < group.size(); ++me) {
    EXPECT_EQ(group.at(me).created, ISTHMUS_ERROR_TIMEOUT);
    EXPECT_NE(group.at(me).last.message.find("0.5 s"), std::string::npos) << group.at(me).last.message;
  }
  expect_released();
}

TEST(lifetime, reports_version_and_releases_everything) {
  rank_group group({});
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  EXPECT_STREQ(group.backend().version(group.at(0).state), "2.28.9");
  ASSERT_EQ(group.at(0).log.size(), 1U);
  EXPECT_NE(group.at(0).log[0].find("libstandin_nccl.so"), std::string::npos);
  EXPECT_EQ(live(), 4);  // a setup and a working communicator for each rank
  group.destroy();
  EXPECT_EQ(live(), 0);
}

// The producer is blocked on the device: the call must return before it runs, and the result
// must include its data.
TEST(order, enqueue_is_asynchronous_and_stream_ordered) {
  rank_group group({});
  std::atomic<bool> release{false};
  std::vector<std::vector<float>> data(2, std::vector<float>(5000, -1.0F));
  std::atomic<int> return_count{0};
  struct producer {
    std::atomic<bool>* release;
    std::vector<float>* data;
    float value;
  };
  std::vector<producer> producers;
  for (int me = 0; me < 2; ++me)
    producers.push_back({&release, &data[static_cast<std::size_t>(me)], static_cast<float>(me + 1)});
  group.for_each_rank([&](rank& self) {
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
    if (++return_count == 2) {
      EXPECT_EQ(data[0][0], -1.0F);
      release = true;
    }
    group.synchronize(self);
    EXPECT_EQ(data[me], std::vector<float>(5000, 3.0F));
  });
}

TEST(order, one_thread_drives_all_ranks_in_a_group) {
  settings config;
  config.size = 4;
  rank_group group(config);
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

// A neighbor exchange is a single native group with all sends and receives.
TEST(order, messages_of_a_group_are_one_native_group) {
  rank_group group({});
  standin_symbol<decltype(&standin_clear_calls)>("standin_clear_calls")();
  group.for_each_rank([&](rank& self) {
    const int me = self.context.rank;
    std::vector<float> send_data(26), recv_data(26, -1);
    std::vector<isthmus_operation> messages;
    for (std::size_t i = 0; i < send_data.size(); ++i) {
      send_data[i] = static_cast<float>(100 * me) + static_cast<float>(i);
      for (const auto collective : {ISTHMUS_SEND, ISTHMUS_RECV}) {
        isthmus_operation& message = messages.emplace_back(allreduce(self, nullptr, 1));
        message.collective = collective;
        message.root = 1 - me;
        message.send_buf = collective == ISTHMUS_SEND ? &send_data[i] : nullptr;
        message.recv_buf = collective == ISTHMUS_RECV ? &recv_data[i] : nullptr;
      }
    }
    EXPECT_EQ(group.backend().enqueue(self.state, messages.data(), nullptr, messages.size()), ISTHMUS_SUCCESS);
    group.synchronize(self);
    for (std::size_t i = 0; i < send_data.size(); ++i)
      EXPECT_EQ(recv_data[i], static_cast<float>(100 * (1 - me)) + static_cast<float>(i));
  });
  const std::string all = calls();
  const auto count = [&](const std::string& name) {
    std::size_t matches = 0;
    for (std::size_t position = all.find(name); position != std::string::npos;
         position = all.find(name, position + 1))
      ++matches;
    return matches;
  };
  EXPECT_EQ(count("ncclSend\n"), 52U) << "26 per rank";
  EXPECT_EQ(count("ncclRecv\n"), 52U);
  EXPECT_EQ(count("ncclGroupEnd\n"), 2U) << "one per rank";
}

// With a single rank, a collective that the library lacks is a copy.
TEST(order, single_rank_block_is_copied) {
  settings config;
  config.size = 1;
  rank_group group(config);
  group.for_each_rank([&](rank& self) {
    const std::vector<float> send_data{1, 2, 3, 4};
    std::vector<float> recv_data(6, -1);
    const std::uint64_t counts = 3, from = 1, to = 2;
    isthmus_operation operation = allreduce(self, recv_data.data(), 0);
    operation.collective = ISTHMUS_ALLTOALLV;
    operation.send_buf = send_data.data();
    operation.send_counts = operation.recv_counts = &counts;
    operation.send_displs = &from;
    operation.recv_displs = &to;
    standin_symbol<decltype(&standin_clear_calls)>("standin_clear_calls")();
    EXPECT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS);
    group.synchronize(self);
    EXPECT_EQ(calls(), "");
    EXPECT_EQ(recv_data, (std::vector<float>{-1, -1, 2, 3, 4, -1}));
  });
}

TEST(order, supported_operation_is_one_native_call) {
  rank_group group({});
  standin_symbol<decltype(&standin_clear_calls)>("standin_clear_calls")();
  std::vector<float> data(10, 1.0F), other_data(10, 1.0F);
  group.for_each_rank([&](rank& self) {
    const isthmus_operation operation =
        allreduce(self, self.context.rank == 0 ? data.data() : other_data.data(), 10);
    group.backend().enqueue(self.state, &operation, nullptr, 1);
    group.synchronize(self);
  });
  EXPECT_EQ(calls(), "ncclAllReduce\nncclAllReduce\n");
}

TEST(in_place, alltoall_sends_from_a_copy) {
  settings config;
  config.size = 3;
  rank_group group(config);
  group.for_each_rank([&](rank& self) {
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

TEST(failure, native_failure_keeps_code_text_and_hint) {
  rank_group group({});
  fail_next("ncclAllReduce", 1, 5);
  float value = 7;
  const isthmus_operation operation = allreduce(group.at(0), &value, 1);
  EXPECT_EQ(group.backend().enqueue(group.at(0).state, &operation, nullptr, 1), ISTHMUS_ERROR_BACKEND);
  const harness::failure& error = group.at(0).last;
  EXPECT_EQ(error.native_code, 5);
  EXPECT_NE(error.message.find("ncclAllReduce"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("ncclInvalidUsage"), std::string::npos);
  EXPECT_NE(error.message.find("the test asked for this failure"), std::string::npos);
  EXPECT_NE(error.hint.find("order of calls"), std::string::npos);
  EXPECT_NE(error.location.find("src/backends/nccl_family/nccl_state.cpp:"), std::string::npos)
      << error.location;
  EXPECT_EQ(value, 7);
}

TEST(failure, native_remote_error_is_remote) {
  rank_group group({});
  fail_next("ncclAllReduce", 1, 6);
  float value = 7;
  const isthmus_operation operation = allreduce(group.at(1), &value, 1);
  EXPECT_EQ(group.backend().enqueue(group.at(1).state, &operation, nullptr, 1), ISTHMUS_ERROR_REMOTE);
  EXPECT_EQ(group.at(1).last.native_code, 6);
}

TEST(failure, group_end_failure_reaches_every_member) {
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

TEST(failure, failed_composed_operation_closes_its_group) {
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
  EXPECT_EQ(standin_symbol<int (*)()>("ncclGroupEnd")(), 5) << "a native group is still open";
}

// A native operation of one rank fails on the device. Its peer waits for data that never arrives.
TEST(failure, poll_reports_it_and_abort_releases_the_peer) {
  rank_group group({});
  std::vector<float> data(100000, 1.0F), other_data(100000, 1.0F);
  standin_symbol<decltype(&standin_fail_half_way)>("standin_fail_half_way")(1);
  group.for_each_rank([&](rank& self) {
    const isthmus_operation operation =
        allreduce(self, self.context.rank == 0 ? data.data() : other_data.data(), 100000);
    EXPECT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS);
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  int failed_rank = -1;
  while (failed_rank < 0 && std::chrono::steady_clock::now() < deadline)
    for (int me = 0; me < 2; ++me)
      if (group.backend().poll(group.at(me).state) != ISTHMUS_SUCCESS) failed_rank = me;
  ASSERT_GE(failed_rank, 0);
  EXPECT_EQ(group.at(failed_rank).last.native_code, 1);
  EXPECT_NE(group.at(failed_rank).last.message.find("ncclUnhandledCudaError"), std::string::npos);
  const auto start = std::chrono::steady_clock::now();
  group.abort();
  for (int me = 0; me < 2; ++me) group.synchronize(group.at(me));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  const isthmus_operation late_call = allreduce(group.at(0), data.data(), 1);
  EXPECT_EQ(group.backend().enqueue(group.at(0).state, &late_call, nullptr, 1), ISTHMUS_ERROR_ABORTED);
  group.destroy();
  expect_released();
}

// ncclCommAbort waits for kernels on the device, which can belong to a backend that is aborted later.
TEST(failure, abort_and_destroy_do_not_wait_for_native_library) {
  rank_group group({});
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  standin_symbol<decltype(&standin_hang_abort)>("standin_hang_abort")(1);
  const auto start = std::chrono::steady_clock::now();
  group.abort();
  group.destroy();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
  EXPECT_GT(live(), 0);
  standin_symbol<decltype(&standin_hang_abort)>("standin_hang_abort")(0);
  expect_released();
}

TEST(failure, synchronize_times_out) {
  settings config;
  config.timeout_s = 0.3;
  rank_group group(config);
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  float value = 1;
  const isthmus_operation lone_call = allreduce(group.at(0), &value, 1);  // rank 1 never calls
  ASSERT_EQ(group.backend().enqueue(group.at(0).state, &lone_call, nullptr, 1), ISTHMUS_SUCCESS);
  EXPECT_EQ(group.backend().synchronize(group.at(0).state), ISTHMUS_ERROR_TIMEOUT);
  group.abort();
}

TEST(support, unsupported_operations_have_a_reason) {
  rank_group group({});
  isthmus_operation operation = allreduce(group.at(0), nullptr, 1);
  EXPECT_EQ(group.backend().algorithms, nullptr) << "the library selects its algorithms itself";
  const auto reason = [&] {
    const char* text = group.backend().supports(group.at(0).state, &operation, ISTHMUS_ANY_ALGORITHM);
    return std::string(text != nullptr ? text : "");
  };
  EXPECT_EQ(reason(), "");
  operation.datatype = ISTHMUS_INT16;
  EXPECT_NE(reason().find("16-bit integer"), std::string::npos);
  operation.collective = ISTHMUS_ALLGATHER;
  EXPECT_EQ(reason(), "");
}

TEST(support, fp8_requires_a_recent_version) {
  standin_symbol<decltype(&standin_set_version)>("standin_set_version")(22105);
  rank_group group({});
  isthmus_operation operation = allreduce(group.at(0), nullptr, 1);
  operation.datatype = ISTHMUS_FLOAT8_E4M3;
  const char* text = group.backend().supports(group.at(0).state, &operation, ISTHMUS_ANY_ALGORITHM);
  ASSERT_NE(text, nullptr);
  EXPECT_NE(std::string(text).find("2.24"), std::string::npos);
}

TEST(barrier, waits_for_all_ranks) {
  rank_group group({});
  std::atomic<int> entries{0};
  group.for_each_rank([&](rank& self) {
    if (self.context.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ++entries;
    isthmus_operation operation{};
    operation.collective = ISTHMUS_BARRIER;
    operation.stream = self.stream;
    EXPECT_EQ(group.backend().enqueue(self.state, &operation, nullptr, 1), ISTHMUS_SUCCESS)
        << self.last.message;
    group.synchronize(self);
    EXPECT_EQ(entries, 2);
  });
}

}  // namespace
