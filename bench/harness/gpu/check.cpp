#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "oracle/check.hpp"
#include "oracle/inputs.hpp"

namespace gpu_bench {
namespace {

constexpr std::uint64_t pattern_bytes = 16 << 20;
constexpr std::uint64_t sum_window_bytes = 64 << 10, copy_window_bytes = 256 << 10;

// The bytes of a send buffer that fill_inputs has filled, from the offset `first`.
std::vector<std::byte> sent(int rank, isthmus_datatype datatype, std::uint64_t first, std::uint64_t bytes) {
  std::vector<std::byte> result(bytes);
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t offset = (first + done) % pattern_bytes;
    const std::uint64_t part = std::min(bytes - done, pattern_bytes - offset);
    oracle::fill({datatype, ISTHMUS_SUM, oracle::input_class::ordinary, 3}, rank,
                 offset / oracle::bytes_of(datatype), std::span(result).subspan(done, part));
    done += part;
  }
  return result;
}

std::uint64_t count_different(const std::vector<std::byte>& actual, const std::vector<std::byte>& expected,
                              std::uint64_t element) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < actual.size(); i += element)
    wrong += std::memcmp(&actual[i], &expected[i], element) != 0 ? 1 : 0;
  return wrong;
}

std::uint64_t count_wrong_sums(const std::vector<std::byte>& actual, int size, isthmus_datatype datatype,
                               std::uint64_t first, double wire_error) {
  std::vector<std::vector<std::byte>> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(sent(rank, datatype, first, actual.size()));
  std::vector<long double> values(inputs.size());
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < actual.size(); i += oracle::bytes_of(datatype)) {
    long double magnitude = 0;
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      values[rank] = oracle::decode(datatype, &inputs[rank][i]);
      magnitude += std::fabs(values[rank]);
    }
    oracle::interval range = oracle::allowed(datatype, ISTHMUS_SUM, values, true);
    range.low -= wire_error * magnitude;
    range.high += wire_error * magnitude;
    wrong += oracle::contains(datatype, range, oracle::decode(datatype, &actual[i])) ? 0 : 1;
  }
  return wrong;
}

// FNV-1a of the checked windows of a rank.
void add_to_digest(std::uint64_t& digest, const std::vector<std::byte>& bytes) {
  for (const std::byte each : bytes) digest = (digest ^ static_cast<std::uint64_t>(each)) * 0x100000001b3U;
}

// Wrong elements of one rank.
std::uint64_t count_wrong_on(const device_call& call, int rank, int size, const std::byte* recv,
                             std::uint64_t& digest) {
  const isthmus_datatype datatype = call.test_case.datatype;
  const isthmus_datatype content = datatype == ISTHMUS_UINT8 ? ISTHMUS_FLOAT32 : datatype;
  const std::uint64_t element = oracle::bytes_of(datatype);
  std::uint64_t wrong = 0;
  for (const oracle::expected_segment& segment : oracle::expected_segments(call.test_case.shape(size), rank)) {
    const bool is_sum = segment.rank == oracle::expected_segment::all_ranks;
    const std::uint64_t bytes = segment.count * element,
                        part = std::min(bytes, is_sum ? sum_window_bytes : copy_window_bytes);
    for (const std::uint64_t first : {std::uint64_t{0}, bytes - part}) {
      std::vector<std::byte> actual(part);
      check(cudaMemcpy(actual.data(), recv + segment.recv_offset * element + first, part, cudaMemcpyDefault));
      add_to_digest(digest, actual);
      const std::uint64_t offset = segment.send_offset * element + first;
      wrong += is_sum ? count_wrong_sums(actual, size, content, offset, call.wire_error)
                      : count_different(actual, sent(segment.rank, content, offset, part),
                                        oracle::bytes_of(content));
      if (part == bytes) break;
    }
  }
  return wrong;
}

}  // namespace

void fill_inputs(void* destination, std::uint64_t bytes, int rank, isthmus_datatype datatype) {
  const std::vector<std::byte> inputs = sent(rank, datatype, 0, std::min(bytes, pattern_bytes));
  for (std::uint64_t offset = 0; offset < bytes; offset += inputs.size())
    check(cudaMemcpy(static_cast<std::byte*>(destination) + offset, inputs.data(),
                     std::min<std::uint64_t>(inputs.size(), bytes - offset), cudaMemcpyDefault));
}

void prepare_in_place(const device_thread& thread, const device_call& call) {
  if (!call.test_case.in_place) return;
  const oracle::operation_shape shape = call.test_case.shape(thread.size());
  const std::uint64_t bytes = shape.count * oracle::bytes_of(call.test_case.datatype);
  thread.each([&](const device_lane& lane, std::size_t i) {
    const std::uint64_t offset =
        bench::is_allgather(call.test_case.collective) ? static_cast<std::uint64_t>(lane.rank) * bytes : 0;
    check(cudaMemcpyAsync(call.buffers[i].recv + offset, call.buffers[i].send, bytes, cudaMemcpyDefault,
                          lane.stream));
  });
}

std::uint64_t count_wrong(const device_thread& thread, const device_call& call, bool same_bits) {
  thread.each([&](const device_lane& lane, std::size_t i) {
    check(cudaMemsetAsync(call.buffers[i].recv, 0xa5, call.test_case.output_bytes(lane.rank, thread.size()),
                          lane.stream));
  });
  prepare_in_place(thread, call);
  thread.wait();
  thread.sync_threads();  // peers may write into the buffers of this thread
  call.run();
  thread.wait();
  std::uint64_t wrong = 0, first_digest = 0;
  thread.each([&](const device_lane& lane, std::size_t i) {
    std::uint64_t digest = 0xcbf29ce484222325U;
    wrong += count_wrong_on(call, lane.rank, thread.size(), call.buffers[i].recv, digest);
    if (i == 0) first_digest = digest;
    wrong += same_bits && digest != first_digest ? 1 : 0;
  });
  return thread.sum(wrong);
}

}  // namespace gpu_bench
