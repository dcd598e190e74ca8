// memory.hpp on devices: blocks of both kinds, and copies within a context and between two,
// with poisoned destinations.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <isthmus/sycl/memory.hpp>
#include <random>

#include "kernels.hpp"

namespace sycl_device_test {
namespace {

namespace memory = isthmus::memory;
using memory::path;
using bytes = std::vector<unsigned char>;

constexpr std::size_t chunk = memory::detail::staging_store::chunk_bytes;
constexpr unsigned char poison = 0x5a;

bytes random_bytes(std::size_t size, unsigned seed) {
  std::mt19937_64 engine(seed);
  bytes values(size);
  for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = engine();
    std::memcpy(values.data() + at, &word, std::min(sizeof word, size - at));
  }
  return values;
}

TEST(memory, queue_uses_its_block) {
  rank_team::get().for_each_rank([](test_rank& self) {
    int* const data = memory::allocate<int>(self.queue, 1000);
    const auto info = memory::query(data + 999);
    EXPECT_EQ(info.begin, data);
    EXPECT_EQ(info.bytes, 4000U);
    EXPECT_EQ(info.device.platform, self.ranks.platform());
    self.queue.fill(data, 17 + self.rank, 1000);
    self.ranks.allreduce(self.queue, data, 1000, isthmus::reduction_op::max);
    std::vector<int> read(1000);
    self.queue.memcpy(read.data(), data, 4000).wait();
    EXPECT_EQ(read, std::vector<int>(1000, 17 + self.ranks.size() - 1));
    memory::free(data, self.queue);
    EXPECT_EQ(sycl_test::thrown_by([&] { memory::free(data, self.queue); }).code(),
              ISTHMUS_ERROR_INVALID_ARGUMENT);
    const memory::array<double> own(self.queue, 100);
    EXPECT_EQ(own.size_bytes(), 800U);
  });
}

TEST(memory, symmetric_block_belongs_to_its_rank) {
  rank_team::get().for_each_rank([](test_rank& self) {
    float* const shared = memory::allocate_symmetric<float>(self.ranks, 500);
    ASSERT_NE(shared, nullptr);
    self.queue.fill(shared, static_cast<float>(self.rank + 1), 500);
    self.ranks.allreduce(self.queue, shared, 500);
    float last = 0;
    self.queue.memcpy(&last, shared + 499, sizeof last).wait();
    EXPECT_EQ(last, static_cast<float>(self.ranks.size() * (self.ranks.size() + 1) / 2));
    self.ranks.barrier(self.queue).wait();  // no rank uses its peers' blocks any longer
    memory::free_symmetric(self.ranks, shared);
  });
}

void expect_copied(test_rank& self, path copy_path, std::size_t size, std::size_t offset) {
  sycl::queue first = unordered_queue(self),
              second = copy_path == path::direct ? second_unordered_queue(self) : other_context_queue(self);
  const bytes source = random_bytes(size + 100, 7);
  const memory::array<unsigned char> from(first, source.size());
  const block<unsigned char> to(size + offset + 100, second);
  first.memcpy(from.data(), source.data(), source.size()).wait();
  second.fill(to.data(), poison, size + offset + 100).wait();
  memory::copy(second, to.data() + offset, first, from.data() + 3, size, {}, copy_path).wait();
  bytes result(size + offset + 100), expected(size + offset + 100, poison);
  second.memcpy(result.data(), to.data(), result.size()).wait();
  std::copy_n(source.begin() + 3, size, expected.begin() + static_cast<std::ptrdiff_t>(offset));
  EXPECT_EQ(std::memcmp(result.data(), expected.data(), expected.size()), 0)
      << size << " bytes at " << offset << ", path " << static_cast<int>(copy_path);
}

TEST(memory, copy_changes_only_the_given_bytes) {
  rank_team::get().for_each_rank([](test_rank& self) {
    for (const path copy_path : {path::direct, path::staged, path::automatic})
      for (const auto& [size, offset] : {std::pair<std::size_t, std::size_t>{0, 0},
                                         {1, 5},
                                         {4097, 7},
                                         {chunk + 1, 0},
                                         {7 * chunk + 12345, 9}})
        expect_copied(self, copy_path, size, offset);
  });
}

TEST(memory, overlapping_copy_acts_as_memmove) {
  rank_team::get().for_each_rank([](test_rank& self) {
    for (const std::ptrdiff_t shift : {std::ptrdiff_t{4097}, static_cast<std::ptrdiff_t>(chunk) + 3}) {
      const auto size = 2 * chunk + 77, far = static_cast<std::size_t>(shift);
      bytes expected = random_bytes(size + far, 9);
      const memory::array<unsigned char> data(self.queue, expected.size());
      self.queue.memcpy(data.data(), expected.data(), expected.size()).wait();
      memory::copy(self.queue, data.data() + far, self.queue, data.data(), size).wait();
      std::memmove(expected.data() + far, expected.data(), size);
      memory::copy(self.queue, data.data(), self.queue, data.data() + far, size).wait();
      std::memmove(expected.data(), expected.data() + far, size);
      bytes result(expected.size());
      self.queue.memcpy(result.data(), data.data(), result.size()).wait();
      EXPECT_EQ(std::memcmp(result.data(), expected.data(), expected.size()), 0) << "shift " << shift;
    }
  });
}

// A waiting kernel produces the data that is copied; a consumer on the destination's queue reads it. The ranks of
// this process run one after the other: DPC++ runs the host tasks of all queues in one thread and waits for a
// task's dependencies while it holds the lock with which other threads submit, so the host of another rank could
// not open its gate.
void expect_ordered_copy(test_rank& self, path copy_path) {
  constexpr std::size_t size = count * sizeof(float);
  sycl::queue producers = unordered_queue(self),
              target = copy_path == path::direct ? second_unordered_queue(self) : other_context_queue(self);
  kernel_gate gate(producers);
  const block<float> from(count, producers), to(count, target),
      host_copy(count, target, sycl::usm::alloc::host);
  producers.fill(from.data(), -1.0F, count).wait();
  target.fill(to.data(), -2.0F, count).wait();
  const sycl::event produce_event =
      kernels_of(self).run(producers, apps::linear_grid(count), make_waiting_kernel(self), {}, gate.flag(),
                           view(from.data(), count));
  const sycl::event copy_event =
      memory::copy(target, to.data(), producers, from.data(), size, {produce_event}, copy_path);
  sycl::event consumed = target.memcpy(host_copy.data(), to.data(), size, copy_event);
  gate.open();
  consumed.wait();
  EXPECT_EQ(host_copy.data()[0], static_cast<float>(1000 * (self.rank + 1)))
      << "the host waited, or the order was lost";
  EXPECT_EQ(host_copy.data()[count - 1], static_cast<float>(1000 * (self.rank + 1) + count - 1));
}

TEST(memory, copy_waits_for_producer_on_device) {
  if (rank_team::get().is_on_host()) GTEST_SKIP() << "tests/sycl/memory_test.cpp covers the host";
  for (test_rank& self : rank_team::get().members())
    for (const path copy_path : {path::direct, path::staged})
      if (copy_path == path::direct || isthmus::detail::can_run_host_work(self.queue.get_device()))
        expect_ordered_copy(self, copy_path);  // otherwise see memory::copy
}

}  // namespace
}  // namespace sycl_device_test
