// Every collective on every kind of SYCL memory and queue, checked by the oracle. No kernels are involved: data
// is copied to the operands and back.
#include <bit>
#include <cstring>
#include <span>

#include "apps/sycl_collectives/calls.hpp"
#include "oracle/check.hpp"
#include "rank_team.hpp"

namespace sycl_device_test {
namespace {

using sycl_collectives::call_shape;

constexpr std::uint64_t bytes = 4012;
constexpr std::uint32_t poison_bits = 0x7fa5a5a5;

// The data that a rank sends and the initial contents of its receive buffer.
struct contents {
  std::vector<float> send, recv;
};

contents prepare(const call_shape& shape, std::uint64_t seed) {
  const oracle::input_spec inputs{ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::input_class::ordinary, seed};
  contents result{std::vector<float>(shape.send_elements),
                  std::vector<float>(shape.recv_elements, std::bit_cast<float>(poison_bits))};
  std::vector<float>& input_buffer = shape.in_place && shape.rank == shape.root ? result.recv : result.send;
  oracle::fill(inputs, shape.rank, 0, std::as_writable_bytes(std::span(input_buffer)));
  return result;
}

void expect_correct(const call_shape& shape, std::uint64_t seed, const std::vector<float>& result) {
  oracle::check_request request{
      {ISTHMUS_FLOAT32, ISTHMUS_SUM, oracle::input_class::ordinary, seed}, shape.definition, shape.rank};
  const auto error = oracle::find_error(request, std::as_bytes(std::span(result)).data());
  EXPECT_EQ(error.value_or(""), "") << shape.entry.name << " on rank " << shape.rank;
}

class every_collective : public testing::TestWithParam<sycl_collectives::collective_entry> {
 protected:
  call_shape shape_of(const test_rank& self) const {
    return sycl_collectives::make_shape(GetParam(), bytes, self.rank, self.ranks.size());
  }
};

// Copies between a vector and USM after `ready`. AdaptiveCpp 24.06 throws std::bad_alloc if a queue of the second device
// copies between two blocks of host memory.
void copy_usm(sycl::queue& queue, sycl::usm::alloc kind, void* to, const void* from, std::size_t bytes,
              sycl::event ready = {}) {
  if (kind != sycl::usm::alloc::host) return queue.memcpy(to, from, bytes, ready).wait();
  ready.wait();
  if (bytes > 0) std::memcpy(to, from, bytes);
}

TEST_P(every_collective, usm_of_every_kind) {
  for (const bool in_order : {true, false})
    for (const auto kind : {sycl::usm::alloc::device, sycl::usm::alloc::shared, sycl::usm::alloc::host})
      rank_team::get().for_each_rank([&](test_rank& self) {
        const call_shape shape = shape_of(self);
        const std::uint64_t seed = 7 + static_cast<std::uint64_t>(kind);
        contents data = prepare(shape, seed);
        sycl::queue queue = in_order ? self.queue : unordered_queue(self);
        const block<float> send(data.send.size(), queue, kind), recv(data.recv.size(), queue, kind);
        copy_usm(queue, kind, send.data(), data.send.data(), data.send.size() * 4);
        copy_usm(queue, kind, recv.data(), data.recv.data(), data.recv.size() * 4);
        float *from = send.data(), *to = recv.data();
        const sycl::event completion = sycl_collectives::call_isthmus(self.ranks, queue, shape, from, to);
        copy_usm(queue, kind, data.recv.data(), to, data.recv.size() * 4, completion);
        if (shape.recv_elements > 0) expect_correct(shape, seed, data.recv);
      });
}

// A buffer of 1 to 3 dimensions with `values` at `offset` and zeros elsewhere.
template <int Dimensions>
sycl::buffer<float, Dimensions> make_buffer(const std::vector<float>& values, std::size_t offset) {
  const std::size_t rows = (values.size() + 2 * offset) / 6 + 1;
  sycl::range<Dimensions> extent = [&] {
    if constexpr (Dimensions == 1) return sycl::range<1>(6 * rows);
    if constexpr (Dimensions == 2) return sycl::range<2>(rows, 6);
    if constexpr (Dimensions == 3) return sycl::range<3>(rows, 2, 3);
  }();
  sycl::buffer<float, Dimensions> result(extent);
  const sycl::host_accessor access(result, sycl::write_only);
  float* const start = access.get_pointer();
  std::fill_n(start, 6 * rows, 0.0F);
  std::copy(values.begin(), values.end(), start + offset);
  return result;
}

template <int Dimensions>
void run_on_buffers(const call_shape& shape, test_rank& self, sycl::queue& queue) {
  constexpr std::size_t offset = 5;
  const std::uint64_t seed = 20 + Dimensions;
  contents data = prepare(shape, seed);
  auto send = make_buffer<Dimensions>(data.send, offset), recv = make_buffer<Dimensions>(data.recv, offset);
  {
    auto from = isthmus::at_offset(send, offset), to = isthmus::at_offset(recv, offset);
    sycl_collectives::call_isthmus(self.ranks, queue, shape, from, to);
  }
  if (shape.recv_elements == 0) {
    queue.wait();
    return;
  }
  const sycl::host_accessor access(recv, sycl::read_only);
  const float* const start = access.get_pointer();
  EXPECT_EQ(std::count(start, start + offset, 0.0F), static_cast<long>(offset)) << "before the offset";
  EXPECT_EQ(start[offset + shape.recv_elements], 0.0F) << "after the count";
  expect_correct(shape, seed, {start + offset, start + offset + shape.recv_elements});
}

TEST_P(every_collective, buffers_of_every_dimension_with_offset) {
  for (const bool in_order : {true, false})
    rank_team::get().for_each_rank([&](test_rank& self) {
      const call_shape shape = shape_of(self);
      sycl::queue queue = in_order ? self.queue : unordered_queue(self);
      run_on_buffers<1>(shape, self, queue);
      run_on_buffers<2>(shape, self, queue);
      run_on_buffers<3>(shape, self, queue);
    });
}

INSTANTIATE_TEST_SUITE_P(table, every_collective, testing::ValuesIn(sycl_collectives::all_entries()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(group, one_thread_drives_all_ranks) {
  std::vector<std::unique_ptr<block<int>>> data;
  isthmus::group group;
  for (test_rank& self : rank_team::get().members()) {
    data.push_back(std::make_unique<block<int>>(100, self.queue));
    self.queue.fill(data.back()->data(), self.rank + 1, 100);
    self.ranks.allreduce(self.queue, data.back()->data(), 100);
  }
  const std::vector<sycl::event> events = group.end();
  const int n = rank_team::get().size();
  for (std::size_t i = 0; i < data.size(); ++i) {
    int last = 0;
    rank_team::get().members()[i].queue.memcpy(&last, data[i]->data() + 99, sizeof last, events[i]).wait();
    EXPECT_EQ(last, n * (n + 1) / 2);
  }
}

TEST(communicators, parent_and_split_are_independent) {
  rank_team::get().for_each_rank([](test_rank& self) {
    const isthmus::communicator other = std::move(*self.ranks.split(0, -self.rank));  // in reverse order
    ASSERT_EQ(other.size(), self.ranks.size());
    const int last = other.size() - 1;
    const block<int> first(1, self.queue), second(1, self.queue);
    for (int repetition = 0; repetition < 10; ++repetition) {
      self.queue.fill(first.data(), self.rank + 100, 1);
      self.queue.fill(second.data(), self.rank + 100, 1);
      self.ranks.broadcast(self.queue, first.data(), 1, 0);
      other.broadcast(self.queue, second.data(), 1, 0);
      int received[2] = {};
      self.queue.memcpy(&received[0], first.data(), sizeof(int));
      self.queue.memcpy(&received[1], second.data(), sizeof(int)).wait();
      ASSERT_EQ(received[0], 100);
      ASSERT_EQ(received[1], 100 + last) << "rank 0 of the subcommunicator is the last rank of the parent";
    }
  });
}

TEST(communicators, split_can_exclude_ranks) {
  rank_team::get().for_each_rank([](test_rank& self) {
    std::optional<isthmus::communicator> part = self.ranks.split(self.rank == 0 ? 0 : ISTHMUS_NO_COLOR, 0);
    ASSERT_EQ(part.has_value(), self.rank == 0);
    if (!part) return;
    const block<int> data(1, self.queue);
    self.queue.fill(data.data(), 5, 1);
    part->allreduce(self.queue, data.data(), 1);
    int received = 0;
    self.queue.memcpy(&received, data.data(), sizeof received).wait();
    EXPECT_EQ(received, 5);
  });
}

}  // namespace
}  // namespace sycl_device_test
