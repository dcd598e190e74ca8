// Checks every collective, datatype and operation of the plug-ins, on the stand-ins, against the oracle.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <tuple>

#include "harness.hpp"
#include "oracle/check.hpp"
#include "oracle/inputs.hpp"
#include "oracle/movement.hpp"
#include "oracle/number.hpp"

namespace {

using harness::rank;
using harness::rank_group;

struct table_row {
  isthmus_collective collective;
  const char* name;
  bool rooted, reduces;
};
constexpr table_row table[] = {
#define ISTHMUS_COLLECTIVE(name, NAME, peer, reduces, send_ranks, send_extent, recv_ranks, recv_extent, \
                           in_place)                                                                    \
  {ISTHMUS_##NAME, #name, #peer[0] != 'N', reduces != 0},
#include <isthmus/collectives.def>
};

bool uses_counts(isthmus_collective collective) {
  return collective == ISTHMUS_ALLGATHERV || collective == ISTHMUS_GATHERV || collective == ISTHMUS_SCATTERV ||
         collective == ISTHMUS_ALLTOALLV || collective == ISTHMUS_REDUCE_SCATTERV;
}

bool partitions_send(isthmus_collective collective) {
  return collective == ISTHMUS_SCATTERV || collective == ISTHMUS_REDUCE_SCATTERV;
}

// Blocks of uneven sizes with gaps. Some are empty.
oracle::block_layout uneven(int size, int salt) {
  oracle::block_layout layout;
  std::uint64_t offset = 0;
  for (int peer = 0; peer < size; ++peer) {
    layout.counts.push_back(static_cast<std::uint64_t>((peer + salt) % 3) * 37);
    layout.displs.push_back(offset);
    offset += layout.counts.back() + 5;
  }
  return layout;
}

oracle::operation_shape shape_of(isthmus_collective collective, int size, int root, std::uint64_t count) {
  oracle::operation_shape shape{collective, size, root, count, {}, {}};
  if (!uses_counts(collective)) return shape;
  shape.send_layouts.resize(static_cast<std::size_t>(size));
  shape.recv_layouts.resize(static_cast<std::size_t>(size));
  for (int target = 0; target < size; ++target) {
    const auto index = static_cast<std::size_t>(target);
    if (collective == ISTHMUS_ALLTOALLV) {
      oracle::block_layout send_blocks, recv_blocks;
      std::uint64_t send_at = 0, recv_at = 0;
      for (int peer = 0; peer < size; ++peer) {  // depends on the sum of both ranks: both agree
        const auto elements = static_cast<std::uint64_t>((target + peer) % 3) * 29;
        send_blocks.counts.push_back(elements);
        send_blocks.displs.push_back(send_at);
        recv_blocks.counts.push_back(elements);
        recv_blocks.displs.push_back(recv_at);
        send_at += elements + 3;
        recv_at += elements + 7;
      }
      shape.send_layouts[index] = send_blocks;
      shape.recv_layouts[index] = recv_blocks;
    } else {
      (partitions_send(collective) ? shape.send_layouts : shape.recv_layouts)[index] = uneven(size, 1);
    }
  }
  return shape;
}

// One rank's buffers, filled with a pattern before the inputs are written.
struct buffers {
  std::vector<std::byte> send, recv;
};

isthmus_operation operation_for(const oracle::operation_shape& shape, isthmus_datatype datatype,
                                isthmus_reduction_op op, rank& self, buffers& memory) {
  isthmus_operation operation{};
  operation.collective = shape.collective;
  operation.datatype = datatype;
  operation.op = op;
  operation.root = shape.root;
  operation.count = shape.count;
  operation.send_buf = memory.send.data();
  operation.recv_buf = memory.recv.data();
  operation.stream = self.stream;
  if (!shape.send_layouts.empty()) {
    const auto me = static_cast<std::size_t>(self.context.rank);
    operation.send_counts = shape.send_layouts[me].counts.data();
    operation.send_displs = shape.send_layouts[me].displs.data();
    operation.recv_counts = shape.recv_layouts[me].counts.data();
    operation.recv_displs = shape.recv_layouts[me].displs.data();
    const auto& own = partitions_send(shape.collective) ? shape.send_layouts[me] : shape.recv_layouts[me];
    if (shape.collective != ISTHMUS_ALLTOALLV) operation.count = own.counts[me];
  }
  return operation;
}

void check(rank_group& group, const oracle::operation_shape& shape, isthmus_datatype datatype,
           isthmus_reduction_op op, const std::string& description) {
  const oracle::input_spec source{datatype, op, oracle::input_class::ordinary, 77};
  const std::size_t element = oracle::bytes_of(datatype);
  const bool point_to_point = shape.collective == ISTHMUS_SEND || shape.collective == ISTHMUS_RECV;
  std::vector<std::string> errors(static_cast<std::size_t>(group.size()));
  group.for_each_rank([&](rank& self) {
    const int me = self.context.rank;
    buffers memory;
    memory.send.resize(oracle::send_extent(shape, me) * element);
    memory.recv.assign(oracle::recv_extent(shape, me) * element, std::byte{0xa5});
    oracle::fill(source, me, 0, memory.send);
    isthmus_operation operation = operation_for(shape, datatype, op, self, memory);
    std::vector<isthmus_operation> calls{operation};
    if (point_to_point) {  // a ring: send and receive in one group
      calls = {operation, operation};
      calls[0].collective = ISTHMUS_SEND;
      calls[0].root = (me + shape.root) % shape.size;
      calls[1].collective = ISTHMUS_RECV;
      calls[1].root = (me - shape.root + shape.size) % shape.size;
      memory.send.resize(shape.count * element);
      oracle::fill(source, me, 0, memory.send);
      memory.recv.assign(shape.count * element, std::byte{0xa5});
      calls[0].send_buf = memory.send.data();
      calls[1].recv_buf = memory.recv.data();
    }
    auto& error = errors[static_cast<std::size_t>(me)];
    for (const isthmus_operation& call : calls)
      if (const char* reason = group.backend().supports(self.state, &call, ISTHMUS_ANY_ALGORITHM))
        error = reason;
    if (error.empty() &&
        group.backend().enqueue(self.state, calls.data(), nullptr, calls.size()) != ISTHMUS_SUCCESS)
      error = self.last.message;
    group.synchronize(self);
    oracle::operation_shape expected = shape;
    if (point_to_point) expected.collective = ISTHMUS_RECV;
    if (error.empty())
      error = oracle::find_error({source, expected, me, false}, memory.recv.data()).value_or("");
  });
  for (int me = 0; me < group.size(); ++me)
    EXPECT_EQ(errors[static_cast<std::size_t>(me)], "")
        << description << " on rank " << me << " of " << group.size();
}

// The stand-in library of this process: the complete one, or one without the functions of newer versions.
std::string library_under_test() {
  const char* library = std::getenv("STANDIN_LIBRARY");
  return library != nullptr ? library : "standin_nccl";
}

class every_plugin : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(every_plugin, matches_the_oracle) {
  const auto [backend, size] = GetParam();
  harness::settings settings;
  settings.backend = backend;
  settings.platform = settings.backend == "nccl" ? ISTHMUS_PLATFORM_CUDA : ISTHMUS_PLATFORM_HIP;
  settings.size = size;
  settings.options["library"] = harness::standin_path(library_under_test());
  rank_group group(settings);
  ASSERT_EQ(group.at(0).created, ISTHMUS_SUCCESS) << group.at(0).last.message;
  for (const table_row& row : table) {
    if (row.collective == ISTHMUS_BARRIER) continue;
    for (const std::uint64_t count : {0, 1, 1003, 40000}) {
      const int root = row.rooted ? (size - 1) : 0;
      for (int datatype = 0; datatype < ISTHMUS_DATATYPE_COUNT; ++datatype) {
        const auto type = static_cast<isthmus_datatype>(datatype);
        if (row.reduces && (type == ISTHMUS_INT16 || type == ISTHMUS_UINT16)) continue;
        if (count == 40000 && type != ISTHMUS_FLOAT32) continue;
        for (int op = 0; op < (row.reduces ? ISTHMUS_REDUCTION_OP_COUNT : 1); ++op)
          check(group,
                shape_of(row.collective, size, row.collective >= ISTHMUS_SEND && size == 1 ? 0 : root, count),
                type, static_cast<isthmus_reduction_op>(op),
                std::string(row.name) + " of " + std::to_string(count) + " of type " +
                    std::to_string(datatype) + " op " + std::to_string(op));
      }
    }
    if (::testing::Test::HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(standins, every_plugin,
                         ::testing::Values(std::tuple("nccl", 1), std::tuple("nccl", 2), std::tuple("nccl", 4),
                                           std::tuple("rccl", 3)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
