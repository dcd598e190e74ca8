// isthmus::memory on the CPU device and its sub-devices, each with its own context: blocks, the provider that
// the front end registers, symmetric blocks, and copies on every path with poisoned destinations.
#include <isthmus/tools.h>

#include <chrono>
#include <cstring>
#include <future>
#include <isthmus/sycl/memory.hpp>
#include <string>

#include "fixture.hpp"

namespace sycl_test {

using namespace std::chrono_literals;
namespace memory = isthmus::memory;
using memory::path;
using bytes = std::vector<unsigned char>;

bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  bytes values(count);
  for (unsigned char& value : values) value = static_cast<unsigned char>(engine());
  return values;
}

// Two devices, each with a context and a queue.
class sycl_memory : public testing::Test {
 protected:
  std::vector<sycl::device> m_devices = devices(2);
  sycl::context m_first_context{m_devices[0]}, m_second_context{m_devices[1]};
  sycl::queue m_first = persistent_queue(m_first_context, m_devices[0]);
  sycl::queue m_second = persistent_queue(m_second_context, m_devices[1]);
};

TEST_F(sycl_memory, queue_uses_its_block) {
  auto* data = memory::allocate<int>(m_first, 1000);
  const auto info = memory::query(data + 999);
  EXPECT_EQ(info.begin, data);
  EXPECT_EQ(info.bytes, 4000U);
  EXPECT_EQ(info.device.platform, ISTHMUS_PLATFORM_HOST);
  m_first.fill(data, 17, 1000).wait();
  std::vector<int> read(1000, poison);
  m_first.memcpy(read.data(), data, 4000).wait();
  EXPECT_EQ(read, std::vector<int>(1000, 17));
  memory::free(data, m_first);
  EXPECT_EQ(memory::allocate<int>(m_first, 0), nullptr);
}

TEST_F(sycl_memory, array_frees_its_block_once) {
  memory::array<double> first(m_first, 100);
  EXPECT_EQ(first.size_bytes(), 800U);
  memory::array<double> second(std::move(first));
  EXPECT_EQ(isthmus_memory_live_blocks(), 1U);
  second = {};
  EXPECT_EQ(isthmus_memory_live_blocks(), 0U);
}

TEST_F(sycl_memory, misuse_throws) {
  void* block = memory::allocate_bytes(m_first, 64, {.unpooled = true});
  memory::free(block, m_first);
  const auto second_free = thrown_by([&] { memory::free(block, m_first); });
  EXPECT_EQ(second_free.code(), ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(second_free.message()).find("was already freed"), std::string::npos)
      << second_free.what();
  const auto overflow = thrown_by([&] { memory::allocate<double>(m_first, SIZE_MAX / 4); });
  EXPECT_EQ(overflow.code(), ISTHMUS_ERROR_INVALID_ARGUMENT);
  const auto out_of_memory = thrown_by([&] { memory::allocate_bytes(m_first, std::size_t{1} << 60); });
  EXPECT_EQ(out_of_memory.code(), ISTHMUS_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(std::string(out_of_memory.message()).find("sycl could not allocate"), std::string::npos)
      << out_of_memory.what();
}

// CMakeLists.txt forces the provider in a separate run of this binary, because it is read once.
TEST_F(sycl_memory, sycl_can_be_the_only_provider) {
  const char* forced = std::getenv("ISTHMUS_MEMORY_PROVIDER");
  if (forced == nullptr) GTEST_SKIP() << "needs ISTHMUS_MEMORY_PROVIDER=sycl";
  auto* data = memory::allocate<int>(m_first, 1000);
  EXPECT_STREQ(memory::query(data).provider, "sycl");
  auto* separate = memory::allocate<int>(m_first, 1000, {.unpooled = true});
  EXPECT_EQ(memory::query(separate).pooled, 0);
  m_first.fill(data, 5, 1000).wait();
  m_first.memcpy(separate, data, 4000).wait();
  EXPECT_EQ(separate[999], 5);
  memory::free(data, m_first);
  memory::free(separate, m_first);
}

TEST_F(sycl_memory, symmetric_block_belongs_to_its_rank) {
  auto ranks = isthmus::communicator::create_all(m_devices, {.timeout_s = 20});
  std::vector<float*> blocks(2, nullptr);
  topology::run_on_each_rank(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    blocks[r] = memory::allocate_symmetric<float>(ranks[r], 500);
  });
  ASSERT_NE(blocks[0], nullptr);
  std::vector<sycl::queue> queues = {m_first, m_second};
  for (std::size_t r = 0; r < 2; ++r) std::fill_n(blocks[r], 500, static_cast<float>(r + 1));
  {
    isthmus::group group;
    for (std::size_t r = 0; r < 2; ++r)
      ranks[r].allreduce(queues[r], blocks[r], 500, isthmus::reduction_op::sum);
  }
  EXPECT_EQ(blocks[1][499], 3.0F);
  EXPECT_EQ(thrown_by([&] { memory::free_symmetric(ranks[1], blocks[0]); }).code(),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  for (std::size_t r = 0; r < 2; ++r) memory::free_symmetric(ranks[r], blocks[r]);
  EXPECT_EQ(thrown_by([&] { memory::free_symmetric(ranks[0], blocks[0]); }).code(),
            ISTHMUS_ERROR_INVALID_ARGUMENT);
}

TEST_F(sycl_memory, symmetric_allocation_in_a_group_is_rejected) {
  auto ranks = isthmus::communicator::create_all(m_devices, {.timeout_s = 20});
  isthmus::group group;
  const auto failure = thrown_by([&] { memory::allocate_symmetric<float>(ranks[0], 500); });
  EXPECT_EQ(failure.code(), ISTHMUS_ERROR_INVALID_USAGE);
}

// ---- copies ---------------------------------------------------------------------------------------------

struct copy_case {
  path way;
  std::size_t size, to_offset, from_offset;
};
void PrintTo(const copy_case& parameters, std::ostream* stream) {
  *stream << "path " << static_cast<int>(parameters.way) << " size " << parameters.size << " offsets "
          << parameters.to_offset << " " << parameters.from_offset;
}

class copies : public sycl_memory, public testing::WithParamInterface<copy_case> {};

TEST_P(copies, copy_exactly_the_given_bytes) {
  const auto [way, size, to_offset, from_offset] = GetParam();
  const bytes source = random_bytes(size + from_offset + 100, 7);
  // USM of each side's own context, which the other context does not know.
  auto* from = sycl::malloc_device<unsigned char>(source.size(), m_first);
  auto* to = sycl::malloc_device<unsigned char>(size + to_offset + 100, m_second);
  m_first.memcpy(from, source.data(), source.size()).wait();
  m_second.fill(to, static_cast<unsigned char>(0x5a), size + to_offset + 100).wait();
  memory::copy(m_second, to + to_offset, m_first, from + from_offset, size, {}, way).wait();
  bytes result(size + to_offset + 100), expected(size + to_offset + 100, 0x5a);
  m_second.memcpy(result.data(), to, result.size()).wait();
  std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from_offset), size,
              expected.begin() + static_cast<std::ptrdiff_t>(to_offset));
  EXPECT_TRUE(result == expected);
  sycl::free(from, m_first);
  sycl::free(to, m_second);
}

constexpr std::size_t chunk = memory::detail::staging_store::chunk_bytes;
INSTANTIATE_TEST_SUITE_P(
    sizes, copies,
    testing::Values(copy_case{path::automatic, 0, 0, 0}, copy_case{path::automatic, 1, 3, 1},
                    copy_case{path::automatic, 100001, 7, 13}, copy_case{path::host, chunk + 5, 1, 0},
                    copy_case{path::staged, 0, 0, 0}, copy_case{path::staged, 1, 1, 3},
                    copy_case{path::staged, 4097, 5, 0}, copy_case{path::staged, chunk - 1, 0, 0},
                    copy_case{path::staged, chunk, 1, 1}, copy_case{path::staged, chunk + 1, 0, 3},
                    copy_case{path::staged, 7 * chunk + 12345, 9, 2}));

TEST_F(sycl_memory, copy_in_one_context_is_direct) {
  sycl::queue out = persistent_queue(m_first_context, m_devices[0]);
  const bytes source = random_bytes(100000, 8);
  auto* from = sycl::malloc_device<unsigned char>(100000, m_first);
  auto* to = sycl::malloc_device<unsigned char>(100000, out);
  m_first.memcpy(from, source.data(), source.size()).wait();
  out.fill(to, static_cast<unsigned char>(1), 100000).wait();
  memory::copy(out, to, m_first, from, 100000, {}, path::direct).wait();
  bytes result(100000);
  out.memcpy(result.data(), to, 100000).wait();
  EXPECT_TRUE(result == source);
  sycl::free(from, m_first);
  sycl::free(to, m_first);
}

TEST_F(sycl_memory, direct_path_across_contexts_fails) {
  unsigned char local[2] = {1, 2};
  const auto refused =
      thrown_by([&] { memory::copy(m_second, local, m_first, local + 1, 1, {}, path::direct); });
  EXPECT_EQ(refused.code(), ISTHMUS_ERROR_UNSUPPORTED);
  EXPECT_EQ(local[0], 1);
  memory::copy(m_second, local, m_first, local + 1, 1, {}, path::host).wait();
  EXPECT_EQ(local[0], 2);
}

TEST_F(sycl_memory, overlapping_copy_acts_as_memmove) {
  for (const path way : {path::automatic, path::staged}) {
    for (const long shift :
         {1L, 4097L, static_cast<long>(chunk) + 3, -1L, -4097L, -static_cast<long>(chunk) - 3}) {
      const std::size_t size = 3 * chunk + 77;
      const std::size_t from = shift < 0 ? static_cast<std::size_t>(-shift) : 0;
      const std::size_t to = shift > 0 ? static_cast<std::size_t>(shift) : 0;
      bytes expected = random_bytes(size + from + to, 9);
      auto* data = memory::allocate<unsigned char>(m_first, expected.size());
      std::copy(expected.begin(), expected.end(), data);
      std::memmove(expected.data() + to, expected.data() + from, size);
      memory::copy(m_first, data + to, m_first, data + from, size, {}, way).wait();
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), data)) << "shift " << shift;
      memory::free(data, m_first);
    }
  }
}

// The copy waits for a slow producer in the other context. A consumer in the destination's context waits for
// the copy. The host never waits in between.
TEST_F(sycl_memory, events_order_copies) {
  for (const path way : {path::automatic, path::staged}) {
    const std::size_t size = chunk + 1000;
    const bytes source = random_bytes(size, 10);
    memory::array<unsigned char> from(m_first, size), to(m_second, size), result_copy(m_second, size);
    std::memset(from.data(), 1, size);
    std::memset(to.data(), 2, size);
    std::promise<void> returned;
    std::future_status wait_status{};
    const sycl::event produce_event = m_first.submit([&](sycl::handler& handler) {
      unsigned char* target = from.data();
      host_task(handler, [target, &source, &returned, &wait_status] {
        wait_status = returned.get_future().wait_for(20s);
        std::copy(source.begin(), source.end(), target);
      });
    });
    const sycl::event copy_event =
        memory::copy(m_second, to.data(), m_first, from.data(), size, {produce_event}, way);
    returned.set_value();
    m_second.memcpy(result_copy.data(), to.data(), size, copy_event).wait();
    EXPECT_EQ(wait_status, std::future_status::ready) << "the host must not wait";
    EXPECT_TRUE(std::equal(source.begin(), source.end(), result_copy.data()));
  }
}

TEST_F(sycl_memory, in_order_queues_order_copies) {
  sycl::queue reader{m_first_context, m_devices[0], sycl::property::queue::in_order{}};
  sycl::queue writer{m_second_context, m_devices[1], sycl::property::queue::in_order{}};
  for (const path way : {path::automatic, path::staged}) {
    const std::size_t size = 2 * chunk + 10;
    const bytes source = random_bytes(size, 11);
    memory::array<unsigned char> from(reader, size), to(writer, size), result_copy(writer, size);
    std::memset(to.data(), 2, size);
    reader.submit([&](sycl::handler& handler) {
      unsigned char* target = from.data();
      host_task(handler, [target, &source] {
        std::this_thread::sleep_for(30ms);
        std::copy(source.begin(), source.end(), target);
      });
    });
    writer.submit([&](sycl::handler& handler) {
      unsigned char* target = to.data();
      host_task(handler, [target] {
        std::this_thread::sleep_for(60ms);
        std::memset(target, 3, size);
      });
    });
    memory::copy(writer, to.data(), reader, from.data(), size, {}, way);
    reader.fill(from.data(), static_cast<unsigned char>(0x5a), size);
    writer.memcpy(result_copy.data(), to.data(), size).wait();
    EXPECT_TRUE(std::equal(source.begin(), source.end(), result_copy.data()));
    reader.wait();
    EXPECT_EQ(from.data()[size - 1], 0x5a);
  }
}

TEST_F(sycl_memory, concurrent_copies_are_independent) {
  constexpr int copies_at_a_time = 24;
  constexpr std::size_t size = 300001;
  std::vector<memory::array<unsigned char>> from, to;
  std::vector<sycl::event> events;
  for (unsigned i = 0; i < copies_at_a_time; ++i) {
    from.emplace_back(i % 2 == 0 ? m_first : m_second, size);
    to.emplace_back(i % 2 == 0 ? m_second : m_first, size);
    const bytes source = random_bytes(size, 100 + i);
    std::copy(source.begin(), source.end(), from.back().data());
    std::memset(to.back().data(), 0x5a, size);
  }
  for (unsigned i = 0; i < copies_at_a_time; ++i)
    events.push_back(memory::copy(i % 2 == 0 ? m_second : m_first, to[i].data(),
                                  i % 2 == 0 ? m_first : m_second, from[i].data(), size, {}, path::staged));
  for (sycl::event& event : events) event.wait();
  for (unsigned i = 0; i < copies_at_a_time; ++i)
    EXPECT_EQ(std::memcmp(to[i].data(), from[i].data(), size), 0) << "copy " << i;
}

}  // namespace sycl_test
