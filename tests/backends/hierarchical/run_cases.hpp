// Runs every collective on device buffers and compares the results with the oracle.
#pragma once

#include <isthmus/tools.h>

#include <nlohmann/json.hpp>

#include "conformance/issue.hpp"
#include "device_memory.hpp"

namespace hierarchical_test {

inline isthmus_status call(const test_rank& self, const conformance::test_case& test,
                           const oracle::operation_shape& shape, isthmus_operation operation) {
  if (test.collective != ISTHMUS_SEND) return isthmus_enqueue(self.communicator, &operation);
  isthmus_operation receive = operation;  // exchange around a ring
  receive.collective = ISTHMUS_RECV;
  operation.root = (self.number + shape.root) % self.size;
  receive.root = (self.number + self.size - shape.root) % self.size;
  operation.recv_buf = nullptr;
  receive.send_buf = nullptr;
  isthmus_group_start();
  isthmus_enqueue(self.communicator, &operation);
  isthmus_enqueue(self.communicator, &receive);
  return isthmus_group_end();
}

// Runs one case and returns the hash of this rank's result.
inline std::uint64_t run_case(const test_rank& self, isthmus_platform platform,
                              const conformance::test_case& test, int ordinal) {
  const oracle::operation_shape shape = conformance::shape_of(test, self.size);
  std::vector<std::byte> memory(conformance::rank_buffers::required_bytes(test, shape));
  const conformance::rank_buffers buffers(test, shape, self.number, memory);
  device_memory device_copy(platform, memory.size(), ordinal);
  device_copy.put(memory.data());
  const auto device_address = [&](std::byte* pointer) {
    return pointer == nullptr ? nullptr : device_copy.at(static_cast<std::size_t>(pointer - memory.data()));
  };
  const conformance::placement addresses{device_address(buffers.addresses().send),
                                         device_address(buffers.addresses().recv)};
  EXPECT_EQ(call(self, test, shape, conformance::operation_of(test, shape, addresses, self.number)),
            ISTHMUS_SUCCESS)
      << conformance::to_string(test) << ": " << topology::last_error().message;
  device_copy.get(memory.data());
  EXPECT_EQ(buffers.find_error(true, true, false).value_or(""), "") << conformance::to_string(test);
  return buffers.hash();
}

inline void run_all_cases(const test_rank& self, isthmus_platform platform, int ordinal = 0) {
  ASSERT_EQ(self.status, ISTHMUS_SUCCESS) << self.failure.message;
  std::uint64_t seed = 1;
  std::vector<std::uint64_t> allreduce_hashes;
  for (const isthmus_collective collective : conformance::collectives())
    for (const isthmus_datatype datatype : {ISTHMUS_FLOAT32, ISTHMUS_BFLOAT16, ISTHMUS_INT64})
      for (const bool in_place : {false, true})
        for (const std::uint64_t count : {0, 1, 300, 5000}) {
          if (in_place && !conformance::can_be_in_place(collective)) continue;
          conformance::test_case test{collective, datatype, ISTHMUS_SUM, count, 0, in_place};
          test.op = static_cast<isthmus_reduction_op>(++seed % ISTHMUS_REDUCTION_OP_COUNT);
          test.root = static_cast<int>(seed % 4);
          test.seed = seed;
          const std::uint64_t hash = run_case(self, platform, test, ordinal);
          if (collective == ISTHMUS_ALLREDUCE) allreduce_hashes.push_back(hash);
        }
  for (const auto& hashes : self.sync.exchange(self.number, allreduce_hashes))
    EXPECT_EQ(hashes, allreduce_hashes);
}

// The explanation of a call with 1,000 float32 elements.
inline nlohmann::json explain_call(const test_rank& self, isthmus_collective collective) {
  isthmus_operation operation{};
  operation.count = 1000;
  operation.collective = collective;
  operation.datatype = ISTHMUS_FLOAT32;
  return nlohmann::json::parse(text_of([&](char* text, std::size_t capacity, std::size_t* required_bytes) {
    return isthmus_communicator_explain(self.communicator, &operation, text, capacity, required_bytes);
  }));
}

}  // namespace hierarchical_test
