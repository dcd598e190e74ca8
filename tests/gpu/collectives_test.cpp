// Tests every collective, datatype, operation and buffer convention on devices through the C API against the
// oracle. `explain` shows which library ran.
#include <gtest/gtest.h>
#include <isthmus/tools.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "scenario.hpp"

namespace {

using gpu::member;
using gpu::rank_call;
using gpu::scenario;
using gpu::test_ranks;

void expect_correct(const scenario& setup, const std::string& name) {
  test_ranks::get().for_each_rank([&](member& self) {
    const rank_call call(setup, self);
    ASSERT_EQ(call.start(), ISTHMUS_SUCCESS) << name << " on rank " << self.rank << ": " << gpu::last_error();
    self.queue->synchronize();
    EXPECT_EQ(call.error(), "") << name << " on rank " << self.rank << " of " << test_ranks::get().size();
  });
}

std::string describe(const gpu::table_row& row, const scenario& setup) {
  return std::string(row.name) + " of " + std::to_string(setup.shape.count) + " " +
         isthmus_datatype_name(setup.datatype) +
         (row.reduces ? std::string(" ") + isthmus_reduction_op_name(setup.op) : "") +
         (setup.in_place ? " in place" : "");
}

class every_collective : public ::testing::TestWithParam<gpu::table_row> {};

TEST_P(every_collective, every_datatype_and_operation) {
  const gpu::table_row& row = GetParam();
  const int size = test_ranks::get().size();
  for (int datatype = 0; datatype < ISTHMUS_DATATYPE_COUNT; ++datatype) {
    const auto type = static_cast<isthmus_datatype>(datatype);
    if (row.reduces && (type == ISTHMUS_INT16 || type == ISTHMUS_UINT16)) continue;  // NCCL lacks these types
    for (int op = 0; op < (row.reduces ? ISTHMUS_REDUCTION_OP_COUNT : 1); ++op)
      for (const bool in_place : {false, true}) {
        if (in_place && !row.can_be_in_place) continue;
        const int root = row.rooted ? size - 1 : 0;
        const scenario setup{gpu::make_shape(row.collective, size, root, 1003), type,
                             static_cast<isthmus_reduction_op>(op), in_place, 11};
        expect_correct(setup, describe(row, setup));
      }
    if (HasFailure()) return;
  }
}

TEST_P(every_collective, every_size_and_root) {
  const gpu::table_row& row = GetParam();
  const int size = test_ranks::get().size();
  for (const std::uint64_t count : {0, 1, 31, 4096, 1 << 19})
    for (int root = 0; root < (row.rooted ? size : 1); ++root) {
      const scenario setup{gpu::make_shape(row.collective, size, root, count), ISTHMUS_FLOAT32, ISTHMUS_SUM,
                           false, count};
      expect_correct(setup, describe(row, setup));
      if (HasFailure()) return;
    }
}

// A different rank is late in each call. The second call must not disturb the first.
TEST_P(every_collective, back_to_back_with_skewed_ranks) {
  const gpu::table_row& row = GetParam();
  const int size = test_ranks::get().size();
  const scenario first{gpu::make_shape(row.collective, size, 0, 20000), ISTHMUS_INT32, ISTHMUS_SUM, false, 5};
  scenario second = first;
  second.seed = 6;
  test_ranks::get().for_each_rank([&](member& self) {
    const rank_call a(first, self), b(second, self);
    for (int repetition = 0; repetition < 50; ++repetition) {
      if (repetition % size == self.rank) std::this_thread::sleep_for(std::chrono::microseconds(300));
      ASSERT_EQ((repetition % 2 == 0 ? a : b).start(), ISTHMUS_SUCCESS) << gpu::last_error();
    }
    self.queue->synchronize();
    EXPECT_EQ(a.error(), "");
    EXPECT_EQ(b.error(), "");
  });
}

TEST_P(every_collective, one_thread_drives_all_ranks) {
  if (!test_ranks::get().is_single_process()) GTEST_SKIP() << "the ranks are processes";
  const gpu::table_row& row = GetParam();
  const scenario setup{gpu::make_shape(row.collective, test_ranks::get().size(), 0, 5000), ISTHMUS_FLOAT32,
                       ISTHMUS_SUM, false, 9};
  std::vector<std::unique_ptr<rank_call>> calls;
  for (member& self : test_ranks::get().members()) {
    gpu::use_device(self.device);
    calls.push_back(std::make_unique<rank_call>(setup, self));
  }
  ASSERT_EQ(isthmus_group_start(), ISTHMUS_SUCCESS);
  for (const auto& call : calls) ASSERT_EQ(call->start(), ISTHMUS_SUCCESS) << gpu::last_error();
  ASSERT_EQ(isthmus_group_end(), ISTHMUS_SUCCESS) << gpu::last_error();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    test_ranks::get().members()[i].queue->synchronize();
    EXPECT_EQ(calls[i]->error(), "") << row.name << " on rank " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(table, every_collective, ::testing::ValuesIn(gpu::table()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(barrier, completes) {
  test_ranks::get().for_each_rank([](member& self) {
    for (int i = 0; i < 20; ++i)
      ASSERT_EQ(isthmus_barrier(self.communicator, self.queue->native()), ISTHMUS_SUCCESS) << gpu::last_error();
    self.queue->synchronize();
  });
}

TEST(split, by_parity_creates_working_communicators) {
  test_ranks::get().for_each_rank([](member& self) {
    isthmus_communicator sub = nullptr;
    ASSERT_EQ(isthmus_communicator_split(self.communicator, self.rank % 2, self.rank, &sub), ISTHMUS_SUCCESS)
        << gpu::last_error();
    int size = 0;
    ASSERT_EQ(isthmus_communicator_size(sub, &size), ISTHMUS_SUCCESS);
    gpu::buffer data(4);
    const std::int32_t value = 1;
    data.write(std::as_bytes(std::span(&value, 1)), *self.queue);
    ASSERT_EQ(
        isthmus_allreduce(data.data(), data.data(), 1, ISTHMUS_INT32, ISTHMUS_SUM, sub, self.queue->native()),
        ISTHMUS_SUCCESS)
        << gpu::last_error();
    const std::vector<std::byte> host = data.read(*self.queue);
    EXPECT_EQ(static_cast<int>(host[0]), size);
    EXPECT_EQ(isthmus_communicator_destroy(sub), ISTHMUS_SUCCESS) << gpu::last_error();
  });
}

// A subcommunicator of all ranks in reverse order shares the parent's native communicator, so roots
// must be translated.
TEST(split, in_reverse_order_renumbers_ranks) {
  test_ranks::get().for_each_rank([](member& self) {
    isthmus_communicator sub = nullptr;
    ASSERT_EQ(isthmus_communicator_split(self.communicator, 0, -self.rank, &sub), ISTHMUS_SUCCESS)
        << gpu::last_error();
    const int last = test_ranks::get().size() - 1;
    gpu::buffer data(4);
    const std::int32_t own_value = self.rank + 100;
    data.write(std::as_bytes(std::span(&own_value, 1)), *self.queue);
    ASSERT_EQ(isthmus_broadcast(data.data(), data.data(), 1, ISTHMUS_INT32, 0, sub, self.queue->native()),
              ISTHMUS_SUCCESS)
        << gpu::last_error();
    std::int32_t received = 0;
    const std::vector<std::byte> host = data.read(*self.queue);
    std::memcpy(&received, host.data(), sizeof(received));
    EXPECT_EQ(received, last + 100) << "rank 0 of the subcommunicator must be the last rank of the parent";
    EXPECT_EQ(isthmus_communicator_destroy(sub), ISTHMUS_SUCCESS) << gpu::last_error();
  });
}

// No default rule selects the peer-memory kernels for this datatype.
TEST(selection, only_several_ranks_use_the_vendor_library) {
  isthmus_operation operation{};
  operation.collective = ISTHMUS_ALLREDUCE;
  operation.datatype = ISTHMUS_INT32;
  operation.count = 1 << 20;
  std::vector<char> text(1 << 16);
  ASSERT_EQ(isthmus_communicator_explain(test_ranks::get().members()[0].communicator, &operation, text.data(),
                                         text.size(), nullptr),
            ISTHMUS_SUCCESS);
  const bool is_alone = test_ranks::get().size() == 1;
  EXPECT_EQ(nlohmann::json::parse(text.data()).at("backend"), is_alone ? "self" : "nccl") << text.data();
  ASSERT_EQ(
      isthmus_communicator_info(test_ranks::get().members()[0].communicator, text.data(), text.size(), nullptr),
      ISTHMUS_SUCCESS);
  for (const auto& backend : nlohmann::json::parse(text.data()).at("backends"))
    if (backend.at("name") == "nccl") {
      EXPECT_EQ(backend.at("state") == "available", !is_alone) << text.data();
    }
}

TEST(misuse, two_ranks_on_one_device_are_refused) {
  if (!test_ranks::get().is_single_process()) GTEST_SKIP() << "needs all ranks here";
  const isthmus_device same[2] = {{ISTHMUS_PLATFORM_CUDA, 0}, {ISTHMUS_PLATFORM_CUDA, 0}};
  isthmus_communicator pair[2] = {};
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof(options);
  options.timeout_s = 20;
  const isthmus_status status = isthmus_communicator_create_all(2, same, &options, pair);
  std::string reason = status == ISTHMUS_SUCCESS ? "" : gpu::last_error();
  if (status == ISTHMUS_SUCCESS) {  // the communicator exists without NCCL; the operation reports the reason
    gpu::use_device(0);
    gpu::buffer data(4);
    EXPECT_EQ(isthmus_allreduce(data.data(), data.data(), 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, pair[0], nullptr),
              ISTHMUS_ERROR_UNSUPPORTED);
    reason = gpu::last_error();
    for (isthmus_communicator each : pair) isthmus_communicator_destroy(each);
  }
  EXPECT_NE(reason.find("same device"), std::string::npos) << reason;
}

}  // namespace
