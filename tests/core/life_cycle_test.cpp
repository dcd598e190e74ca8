// Creation and destruction of communicators: with a unique id, a user's store, in one
// process, by splits, repeatedly.
#include <isthmus/memory.h>

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>

#include "core/support.hpp"

namespace {

std::size_t count_entries(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// The allreduce sum of rank + 1 over all ranks.
float sum_of_ranks(isthmus_communicator rank) {
  int index = 0;
  EXPECT_EQ(isthmus_communicator_rank(rank, &index), ISTHMUS_SUCCESS);
  float contribution = static_cast<float>(index + 1), sum = 0;
  EXPECT_EQ(isthmus_allreduce(&contribution, &sum, 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, rank, nullptr),
            ISTHMUS_SUCCESS)
      << test::last_error().message;
  return sum;
}

TEST(life_cycle, ranks_connect_over_tcp) {
  isthmus_unique_id id;
  ASSERT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS);
  test::scoped_file config(test::host_config);
  test::run_on_each_rank(4, [&](int rank) {
    const auto options = test::options_for(config);
    isthmus_communicator communicator;
    ASSERT_EQ(isthmus_communicator_create(&id, rank, 4, &options, &communicator), ISTHMUS_SUCCESS)
        << test::last_error().message;
    EXPECT_EQ(sum_of_ranks(communicator), 10);
    EXPECT_EQ(isthmus_communicator_destroy(communicator), ISTHMUS_SUCCESS);
  });
}

TEST(life_cycle, one_thread_drives_all_ranks_in_a_group) {
  test::ranks ranks(3, test::host_config);
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  float in[] = {1, 2, 4}, out[3] = {};
  for (int round = 0; round < 50; ++round) {
    isthmus_group_start();
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(isthmus_allreduce(&in[rank], &out[rank], 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, ranks[rank], nullptr),
                ISTHMUS_SUCCESS);
    ASSERT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << test::last_error().message;
    for (const float value : out) ASSERT_EQ(value, 7);
  }
}

TEST(life_cycle, one_thread_per_rank_works_without_groups) {
  test::ranks ranks(3, test::host_config);
  test::run_on_each_rank(3, [&](int rank) {
    for (int round = 0; round < 100; ++round) ASSERT_EQ(sum_of_ranks(ranks[rank]), 6);
  });
}

TEST(life_cycle, nested_splits_outlive_their_parents) {
  test::ranks ranks(4, test::host_config);
  test::run_on_each_rank(4, [&](int rank) {
    isthmus_communicator half, single;
    ASSERT_EQ(isthmus_communicator_split(ranks[rank], rank / 2, rank, &half), ISTHMUS_SUCCESS)
        << test::last_error().message;
    EXPECT_EQ(sum_of_ranks(half), 3);
    ASSERT_EQ(isthmus_communicator_split(half, rank, 0, &single), ISTHMUS_SUCCESS)
        << test::last_error().message;
    EXPECT_EQ(sum_of_ranks(single), 1);
    EXPECT_EQ(sum_of_ranks(ranks[rank]), 10) << "the parent stays usable";
    isthmus_communicator_destroy(half);
    EXPECT_EQ(sum_of_ranks(single), 1) << "a subcommunicator outlives its parent";
    isthmus_communicator_destroy(single);
  });
}

TEST(life_cycle, split_rejects_invalid_arguments) {
  test::ranks ranks(1, test::host_config);
  isthmus_communicator subcommunicator;
  EXPECT_EQ(isthmus_communicator_split(ranks[0], -2, 0, &subcommunicator), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_communicator_split(ranks[0], 0, 0, nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST(life_cycle, queries) {
  standin::reset();
  test::ranks ranks(2, standin::configuration(), ISTHMUS_PLATFORM_HIP);
  int value = -1;
  EXPECT_EQ(isthmus_communicator_local_size(ranks[1], &value), ISTHMUS_SUCCESS);
  EXPECT_EQ(value, 2);
  EXPECT_EQ(isthmus_communicator_nodes(ranks[1], &value), ISTHMUS_SUCCESS);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(isthmus_communicator_nodes(ranks[1], nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
  isthmus_device device{};
  EXPECT_EQ(isthmus_communicator_device(ranks[1], &device), ISTHMUS_SUCCESS);
  EXPECT_EQ(device.platform, ISTHMUS_PLATFORM_HIP);
  EXPECT_EQ(isthmus_communicator_rank(ranks[1], nullptr), ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST(life_cycle, names) {
  EXPECT_STREQ(isthmus_version(), "0.1.0");
  EXPECT_STREQ(isthmus_collective_name(ISTHMUS_REDUCE_SCATTER), "reduce_scatter");
  EXPECT_STREQ(isthmus_datatype_name(ISTHMUS_FLOAT8_E5M2), "float8_e5m2");
  EXPECT_STREQ(isthmus_reduction_op_name(ISTHMUS_AVG), "avg");
  EXPECT_STREQ(isthmus_platform_name(ISTHMUS_PLATFORM_LEVEL_ZERO), "level_zero");
  EXPECT_STREQ(isthmus_status_name(ISTHMUS_ERROR_TIMEOUT), "timeout");
  EXPECT_EQ(isthmus_datatype_bytes(ISTHMUS_BFLOAT16), 2u);
  EXPECT_EQ(isthmus_collective_name(ISTHMUS_COLLECTIVE_COUNT), nullptr);
  EXPECT_EQ(isthmus_datatype_name(static_cast<isthmus_datatype>(-1)), nullptr);
  EXPECT_EQ(isthmus_reduction_op_name(static_cast<isthmus_reduction_op>(99)), nullptr);
  EXPECT_EQ(isthmus_platform_name(ISTHMUS_PLATFORM_COUNT), nullptr);
  EXPECT_EQ(isthmus_status_name(static_cast<isthmus_status>(99)), nullptr);
  EXPECT_EQ(isthmus_datatype_bytes(ISTHMUS_DATATYPE_COUNT), 0u);
}

// A store that the user implements, for example with torch.distributed.
struct user_store {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  bool is_broken = false;

  static int set(void* context, const char* key, const void* value, size_t bytes) {
    auto& self = *static_cast<user_store*>(context);
    const std::lock_guard lock(self.mutex);
    EXPECT_TRUE(std::string(key).starts_with("isthmus/")) << key;
    EXPECT_FALSE(self.values.contains(key)) << key << " is set twice";
    self.values[key].assign(static_cast<const char*>(value), bytes);
    self.changed.notify_all();
    return self.is_broken ? 5 : 0;
  }
  static int get(void* context, const char* key, void* value, size_t bytes, double timeout_s) {
    auto& self = *static_cast<user_store*>(context);
    std::unique_lock lock(self.mutex);
    if (!self.changed.wait_for(lock, std::chrono::duration<double>(timeout_s),
                               [&] { return self.values.contains(key); }))
      return 1;
    EXPECT_EQ(self.values[key].size(), bytes);
    self.values[key].copy(static_cast<char*>(value), bytes);
    return 0;
  }
  isthmus_store_table table() {
    return {.struct_bytes = sizeof(isthmus_store_table),
            .context = this,
            .set = set,
            .get = get,
            .set_if_absent = nullptr};
  }
};

TEST(life_cycle, ranks_connect_through_a_user_store) {
  user_store store;
  const auto table = store.table();
  test::scoped_file config(test::host_config);
  test::run_on_each_rank(3, [&](int rank) {
    const auto options = test::options_for(config);
    for (int repetition = 0; repetition < 3; ++repetition) {  // the keys of the earlier communicators remain
      isthmus_communicator communicator;
      ASSERT_EQ(isthmus_communicator_create_store(&table, rank, 3, &options, &communicator), ISTHMUS_SUCCESS)
          << test::last_error().message;
      EXPECT_EQ(sum_of_ranks(communicator), 6);
      isthmus_communicator_destroy(communicator);
    }
  });
}

TEST(life_cycle, user_store_serves_several_communicators) {
  user_store store;
  const auto table = store.table();
  test::scoped_file config(test::host_config);
  for (const int size : {2, 3, 2, 2, 3, 2, 2, 2, 2, 2})
    test::run_on_each_rank(size, [&](int rank) {
      const auto options = test::options_for(config);
      isthmus_communicator communicator;
      ASSERT_EQ(isthmus_communicator_create_store(&table, rank, size, &options, &communicator), ISTHMUS_SUCCESS)
          << test::last_error().message;
      EXPECT_EQ(sum_of_ranks(communicator), size * (size + 1) / 2);
      isthmus_communicator_destroy(communicator);
    });
}

// The keys of the failed creation remain in the store.
TEST(life_cycle, user_store_serves_after_a_failed_creation) {
  user_store store;
  const auto table = store.table();
  test::scoped_file config(test::host_config);
  const auto create = [&](int rank, double timeout_s) {
    const auto options = test::options_for(config, timeout_s);
    isthmus_communicator communicator;
    const auto status = isthmus_communicator_create_store(&table, rank, 2, &options, &communicator);
    isthmus_communicator_destroy(communicator);
    return status;
  };
  EXPECT_EQ(create(0, 0.2), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(create(1, 10), ISTHMUS_ERROR_TIMEOUT) << "rank 1 reports that rank 0 waited for it";
  EXPECT_NE(std::string(test::last_error().message).find("rank 0 failed"), std::string::npos)
      << test::last_error().message;
  test::run_on_each_rank(
      2, [&](int rank) { EXPECT_EQ(create(rank, 10), ISTHMUS_SUCCESS) << test::last_error().message; });
}

TEST(life_cycle, broken_and_incomplete_stores_are_reported) {
  user_store store;
  store.is_broken = true;
  auto table = store.table();
  test::scoped_file config(test::host_config);
  const auto options = test::options_for(config);
  isthmus_communicator communicator;
  EXPECT_EQ(isthmus_communicator_create_store(&table, 0, 1, &options, &communicator), ISTHMUS_ERROR_BACKEND);
  EXPECT_EQ(test::last_error().native_code, 5);
  table.get = nullptr;
  EXPECT_EQ(isthmus_communicator_create_store(&table, 0, 1, &options, &communicator),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(isthmus_communicator_create_store(nullptr, 0, 1, &options, &communicator),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST(life_cycle, missing_ranks_are_named_before_long) {
  isthmus_unique_id id;
  ASSERT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS);
  test::scoped_file config(test::host_config);
  const auto start = std::chrono::steady_clock::now();
  test::run_on_each_rank(4, [&](int rank) {
    if (rank == 1 || rank == 3) return;
    const auto options = test::options_for(config, 0.5);
    isthmus_communicator communicator;
    // The rank that times out first notifies the other.
    const auto status = isthmus_communicator_create(&id, rank, 4, &options, &communicator);
    EXPECT_TRUE(status == ISTHMUS_ERROR_TIMEOUT || status == ISTHMUS_ERROR_REMOTE);
    EXPECT_NE(std::string(test::last_error().message).find("missing: 1, 3"), std::string::npos)
        << test::last_error().message;
    EXPECT_EQ(communicator, nullptr);
  });
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 8);
}

TEST(life_cycle, two_hundred_communicators_leak_nothing) {
  const auto run_once = [] {
    test::ranks ranks(2, test::host_config);
    ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
    float in[] = {1, 2}, out[2];
    isthmus_group_start();
    for (int rank = 0; rank < 2; ++rank)
      isthmus_allreduce(&in[rank], &out[rank], 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, ranks[rank], nullptr);
    ASSERT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS);
    ASSERT_EQ(out[1], 3);
  };
  run_once();
  const auto descriptors = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
  for (int i = 0; i < 200; ++i) run_once();
  EXPECT_LE(count_entries("/proc/self/fd"), descriptors);
  EXPECT_LE(count_entries("/proc/self/task"), threads);
}

TEST(life_cycle, only_lost_blocks_are_logged) {
  for (const bool is_freed : {true, false}) {
    testing::internal::CaptureStderr();
    {
      test::ranks ranks(1, test::host_config);
      void* block = nullptr;
      ASSERT_EQ(isthmus_memory_allocate_symmetric(ranks[0], 64, &block), ISTHMUS_SUCCESS);
      if (is_freed) {
        EXPECT_EQ(isthmus_memory_free_symmetric(ranks[0], block), ISTHMUS_SUCCESS);
      }
    }
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(log.find("1 block(s) of the symmetric heap were not freed") != std::string::npos, !is_freed)
        << log;
    EXPECT_EQ(log.find("symmetric heap") != std::string::npos, !is_freed) << log;
  }
}

TEST(life_cycle, stores_are_released_with_their_ranks) {
  const auto run_once = [] {
    isthmus_unique_id id;
    ASSERT_EQ(isthmus_unique_id_create(nullptr, &id), ISTHMUS_SUCCESS);
    test::scoped_file config(test::host_config);
    test::run_on_each_rank(2, [&](int rank) {
      const auto options = test::options_for(config);
      isthmus_communicator communicator;
      ASSERT_EQ(isthmus_communicator_create(&id, rank, 2, &options, &communicator), ISTHMUS_SUCCESS);
      isthmus_communicator_destroy(communicator);
    });
  };
  run_once();
  const auto descriptors = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
  for (int i = 0; i < 20; ++i) run_once();
  // The last server thread may exit shortly after the last rank.
  for (int i = 0; i < 100 && count_entries("/proc/self/task") > threads; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_LE(count_entries("/proc/self/task"), threads);
  EXPECT_LE(count_entries("/proc/self/fd"), descriptors + 4);
}

// A program compiled for a shorter options struct: the memory after it must not be read.
TEST(life_cycle, shorter_options_struct_is_accepted) {
  const test::scoped_file config(test::host_config);
  auto options = test::options_for(config);
  options.struct_bytes = offsetof(isthmus_communicator_options, setup_timeout_s);
  options.setup_timeout_s = -1;
  options.external_backends = reinterpret_cast<const char*>(1);
  const isthmus_device device{ISTHMUS_PLATFORM_HOST, 0};
  isthmus_communicator communicator = nullptr;
  ASSERT_EQ(isthmus_communicator_create_all(1, &device, &options, &communicator), ISTHMUS_SUCCESS)
      << test::last_error().message;
  EXPECT_EQ(isthmus_communicator_destroy(communicator), ISTHMUS_SUCCESS);
  options.struct_bytes -= 1;
  EXPECT_EQ(isthmus_communicator_create_all(1, &device, &options, &communicator),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(test::last_error().message).find("struct_bytes = 39 must be at least 40"),
            std::string::npos)
      << test::last_error().message;
}

}  // namespace
