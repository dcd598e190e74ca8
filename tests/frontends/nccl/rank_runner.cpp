#include "rank_runner.hpp"

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "nccl.hpp"
#include "oracle/inputs.hpp"

namespace nccl_program {
namespace {

using conformance::test_case;

// ncclDataType_t of an isthmus_datatype; -1 if NCCL has none.
int type_of(isthmus_datatype datatype) {
  switch (datatype) {
    case ISTHMUS_INT8: return 0;
    case ISTHMUS_UINT8: return 1;
    case ISTHMUS_INT32: return 2;
    case ISTHMUS_UINT32: return 3;
    case ISTHMUS_INT64: return 4;
    case ISTHMUS_UINT64: return 5;
    case ISTHMUS_FLOAT16: return 6;
    case ISTHMUS_FLOAT32: return 7;
    case ISTHMUS_FLOAT64: return 8;
    case ISTHMUS_BFLOAT16: return 9;
    case ISTHMUS_FLOAT8_E4M3: return 10;
    case ISTHMUS_FLOAT8_E5M2: return 11;
    default: return -1;
  }
}

int op_of(isthmus_reduction_op op) {
  constexpr int values[] = {0, 1, 3, 2, 4};  // sum, prod, min, max, avg
  return values[op];
}

constexpr isthmus_collective collectives[] = {ISTHMUS_ALLREDUCE, ISTHMUS_ALLGATHER, ISTHMUS_REDUCE_SCATTER,
                                              ISTHMUS_BROADCAST, ISTHMUS_REDUCE,    ISTHMUS_ALLTOALL,
                                              ISTHMUS_GATHER,    ISTHMUS_SCATTER};

int call(const test_case& test, const void* send, void* recv, void* comm, void* stream) {
  const int type = type_of(test.datatype), op = op_of(test.op);
  switch (test.collective) {
    case ISTHMUS_ALLREDUCE: return ncclAllReduce(send, recv, test.count, type, op, comm, stream);
    case ISTHMUS_ALLGATHER: return ncclAllGather(send, recv, test.count, type, comm, stream);
    case ISTHMUS_REDUCE_SCATTER: return ncclReduceScatter(send, recv, test.count, type, op, comm, stream);
    case ISTHMUS_REDUCE: return ncclReduce(send, recv, test.count, type, op, test.root, comm, stream);
    case ISTHMUS_ALLTOALL: return ncclAlltoAll(send, recv, test.count, type, comm, stream);
    case ISTHMUS_GATHER: return ncclGather(send, recv, test.count, type, test.root, comm, stream);
    case ISTHMUS_SCATTER: return ncclScatter(send, recv, test.count, type, test.root, comm, stream);
    default: break;
  }
  if (send == recv) return ncclBcast(recv, test.count, type, test.root, comm, stream);
  return ncclBroadcast(send, recv, test.count, type, test.root, comm, stream);
}

}  // namespace

void check(int code, const char* function) {
  if (code == 0) return;
  std::printf("%s returned %d\n", function, code);
  std::fflush(stdout);
  std::_Exit(1);
}

std::vector<test_case> random_calls(std::uint64_t seed, int size, int n) {
  std::vector<test_case> tests;
  for (std::uint64_t i = 0; tests.size() < static_cast<std::size_t>(n); ++i) {
    const auto draw = [&](std::uint64_t salt, std::uint64_t end) { return oracle::mix(seed, i, salt) % end; };
    constexpr std::uint64_t counts[] = {0, 1, 7, 256, 1003, 20000};
    test_case test;
    test.collective = collectives[draw(1, std::size(collectives))];
    test.datatype = static_cast<isthmus_datatype>(draw(2, ISTHMUS_DATATYPE_COUNT));
    test.op = static_cast<isthmus_reduction_op>(draw(3, ISTHMUS_REDUCTION_OP_COUNT));
    test.count = counts[draw(4, std::size(counts))];
    test.root = static_cast<int>(draw(5, static_cast<std::uint64_t>(size)));
    // NCCL has no in-place alltoall.
    test.in_place = draw(6, 2) != 0 && test.collective != ISTHMUS_ALLTOALL;
    test.seed = draw(7, 1u << 30);
    if (type_of(test.datatype) >= 0) tests.push_back(test);
  }
  return tests;
}

rank_runner::rank_runner(int rank, int size, int device) : m_rank(rank), m_size(size), m_device(device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  for (void*& each : m_streams) check(cudaStreamCreateWithFlags(&each, 1), "cudaStreamCreateWithFlags");
}

rank_runner::~rank_runner() {
  release();
  for (void* const each : m_streams) cudaStreamDestroy(each);
}

void rank_runner::release() {
  for (const pending_call& each : m_calls) cudaFree(each.memory);
  m_calls.clear();
}

void rank_runner::prepare(const std::vector<test_case>& tests) {
  check(cudaSetDevice(m_device), "cudaSetDevice");
  release();
  for (const test_case& test : tests) {
    pending_call new_call{test, conformance::shape_of(test, m_size), nullptr, nullptr};
    const std::size_t bytes = conformance::rank_buffers::required_bytes(test, new_call.shape);
    check(cudaMalloc(&new_call.memory, bytes), "cudaMalloc");
    new_call.buffers = std::make_unique<conformance::rank_buffers>(
        test, new_call.shape, m_rank, std::span(static_cast<std::byte*>(new_call.memory), bytes));
    m_calls.push_back(std::move(new_call));
  }
}

int rank_runner::issue(std::size_t i) {
  const pending_call& each = m_calls[i];
  const conformance::placement case_addresses = each.buffers->addresses();
  return call(each.test, case_addresses.send, case_addresses.recv, comm, m_streams[each.test.seed % 2]);
}

void rank_runner::synchronize() {
  for (void* const each : m_streams) check(cudaStreamSynchronize(each), "cudaStreamSynchronize");
}

int rank_runner::wrong() {
  int wrong_count = 0;
  for (const pending_call& each : m_calls)
    if (const auto error = each.buffers->find_error(each.test.count > 0, true, false)) {
      std::printf("rank %d: %s: %s\n", m_rank, conformance::to_string(each.test).c_str(), error->c_str());
      ++wrong_count;
    }
  return wrong_count;
}

}  // namespace nccl_program
