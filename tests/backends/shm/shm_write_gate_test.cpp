// A rank that is stopped and goes on after the others have given up: it must not write into their buffers, nor
// report a success that is none. And whoever gives up names it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "backends/shm/write_gate.hpp"
#include "rank_runner.hpp"

namespace shm_test {
namespace {

using namespace std::chrono_literals;
using failures = std::vector<std::string>;

constexpr float poison = -77;

// Where the buffers of the operation lie.
enum class memory { heap, separate };

struct scene {
  const char* name;
  isthmus_collective collective;
  memory where;
  std::uint64_t count;  // floats
  bool sends = false;   // a message from rank 1 to rank 0; else a collective
};

std::ostream& operator<<(std::ostream& out, const scene& s) { return out << s.name; }

// What the processes of one test share beside the ranks' own area.
struct shared_state {
  std::atomic<pid_t> late{0};  // the process of rank 1
  std::atomic<bool> checked{false};
};

struct shared_page {
  shared_page() {
    void* const page =
        ::mmap(nullptr, sizeof(shared_state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    it = new (page) shared_state;
  }
  ~shared_page() { ::munmap(it, sizeof(shared_state)); }
  shared_state* operator->() const { return it; }
  shared_state* it;
};

bool is_all(const float* data, std::uint64_t count, float value) {
  for (std::uint64_t i = 0; i < count; ++i)
    if (data[i] != value) return false;
  return true;
}

isthmus_operation make(const scene& s, const rank& self, float* send, float* recv) {
  isthmus_operation operation{};
  operation.collective = s.sends ? (self.number() == 1 ? ISTHMUS_SEND : ISTHMUS_RECV) : s.collective;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = s.count;
  operation.send_buf = send;
  operation.recv_buf = recv;
  operation.root = s.sends ? 1 - self.number() : 0;
  return operation;
}

// Calls until one is stopped in its middle. Rank 0 fails, reuses its buffer, wakes rank 1 and looks.
class play {
 public:
  play(const scene& s, const shared_page& shared, rank& self, unsigned seed)
      : m_scene(s), m_shared(shared), m_self(self), m_random(seed) {
    const std::uint64_t blocks = s.collective == ISTHMUS_GATHER ? 2 : 1;
    if (s.where == memory::heap) {
      m_send = reinterpret_cast<float*>(self.heap(0)) + 5;  // not at a page's beginning
      m_recv = reinterpret_cast<float*>(self.heap(1)) + 5;
    } else {
      m_own.resize((blocks + 1) * s.count);
      m_send = m_own.data();
      m_recv = m_send + s.count;
    }
    m_received = s.sends && self.number() == 1 ? 0 : blocks * s.count;
  }

  void run() {
    check(m_self.create() == ISTHMUS_SUCCESS, "create: " + m_self.failure());
    std::fill_n(m_send, m_scene.count, 1.0f);
    call();  // the first one is not disturbed
    m_self.meet();
    if (m_self.number() == 1)
      run_late();
    else
      run_in_time();
  }

 private:
  isthmus_status call() {
    return m_self.run(make(m_scene, m_self, m_send, m_recv), m_scene.sends ? nullptr : "zero_copy");
  }

  void run_late() {
    m_shared->late = ::getpid();
    isthmus_status status = ISTHMUS_SUCCESS;
    while (status == ISTHMUS_SUCCESS) {
      std::fill_n(m_recv, m_received, 0.0f);
      status = call();
      if (status == ISTHMUS_SUCCESS && !m_scene.sends && m_scene.collective == ISTHMUS_ALLREDUCE)
        check(is_all(m_recv, m_scene.count, 2), "a success with wrong sums");
    }
    check(status == ISTHMUS_ERROR_REMOTE, "the late rank: " + std::to_string(status) + " " + m_self.failure());
    while (!m_shared->checked) std::this_thread::sleep_for(1ms);
  }

  void run_in_time() {
    while (m_shared->late == 0) std::this_thread::sleep_for(1ms);
    std::thread stopper([this, pause = std::uniform_int_distribution<int>(0, 20'000)(m_random)] {
      std::this_thread::sleep_for(5ms + std::chrono::microseconds(pause));
      ::kill(m_shared->late, SIGSTOP);
    });
    isthmus_status status = ISTHMUS_SUCCESS;
    while (status == ISTHMUS_SUCCESS) status = call();
    stopper.join();
    // the caller has its buffers back
    std::fill_n(m_recv, m_received, poison);
    std::fill_n(m_send, m_scene.count, poison);
    ::kill(m_shared->late, SIGCONT);
    std::this_thread::sleep_for(50ms);
    m_shared->checked = true;
    const bool named = m_self.failure().find("rank 1") != std::string::npos &&
                       m_self.failure().find("is stopped") != std::string::npos;
    check(is_all(m_recv, m_received, poison), "the late rank wrote into the buffer");
    check(status == ISTHMUS_ERROR_TIMEOUT && named, std::to_string(status) + " " + m_self.failure());
  }

  const scene& m_scene;
  const shared_page& m_shared;
  rank& m_self;
  std::minstd_rand m_random;
  std::vector<float> m_own;
  float *m_send = nullptr, *m_recv = nullptr;
  std::uint64_t m_received = 0;
};

class late_rank : public testing::TestWithParam<scene> {};

TEST_P(late_rank, writes_nothing_after_the_others_gave_up) {
  const scene& s = GetParam();
  for (unsigned i = 0; i < 4; ++i) {
    run_setup two;
    two.ranks = two.processes = 2;
    two.timeout_s = 0.4;  // on a crowded machine a rank is late by more than 0.1 s without any stop
    if (s.sends) two.options["spins"] = "4000";
    const shared_page shared;
    ASSERT_EQ(run_ranks(two, [&](rank& self) { play(s, shared, self, i).run(); }), failures{}) << i;
  }
}

TEST(shm_write_gate, no_copy_of_the_kernel_s_gets_past_a_closed_gate) {
  std::byte key{}, from{7}, to{};
  std::byte* address = nullptr;
  const auto copy = [&] {
    const iovec here[] = {{&key, 1}, {&from, 1}}, there[] = {{address, 1}, {&to, 1}};
    return ::process_vm_writev(::getpid(), here, 2, there, 2, 0);
  };
  {
    isthmus::shm::write_gate gate;
    address = gate.address();
    ASSERT_EQ(copy(), 2);
    EXPECT_EQ(to, from);
    to = {};
    gate.close();
    EXPECT_EQ(copy(), -1);
  }
  EXPECT_EQ(copy(), -1);  // nothing else takes its address
  EXPECT_EQ(to, std::byte{});
}

TEST(shm_write_gate, what_is_made_private_keeps_its_content_and_hides_later_writes) {
  constexpr std::size_t page = 4096, bytes = 7 * page, begin = 100;
  for (const std::size_t length : {std::size_t{1}, page - begin, page, 2 * page, 5 * page - 3}) {
    void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(pages, MAP_FAILED);
    auto* const data = static_cast<std::byte*>(pages);
    std::memset(data, 1, bytes);
    int go[2];
    ASSERT_EQ(::pipe(go), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      char ignored = 0;
      const bool told = ::read(go[0], &ignored, 1) == 1;
      if (told) std::memset(data, 2, bytes);
      ::_exit(told ? 0 : 1);
    }
    EXPECT_TRUE(isthmus::shm::make_private({data + begin, length, true}));
    EXPECT_EQ(std::count(data, data + bytes, std::byte{1}), static_cast<std::ptrdiff_t>(bytes));
    EXPECT_EQ(::write(go[1], "", 1), 1);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(std::count(data + begin, data + begin + length, std::byte{1}),
              static_cast<std::ptrdiff_t>(length));
    EXPECT_EQ(data[bytes - 1], std::byte{2}) << "what was not exposed stays shared";
    ::munmap(pages, bytes);
    ::close(go[0]);
    ::close(go[1]);
  }
}

constexpr std::uint64_t in_the_heap = heap_block_bytes / sizeof(float) - 1000;
INSTANTIATE_TEST_SUITE_P(
    shm_write_gate, late_rank,
    testing::Values(scene{"allreduce_in_the_heap", ISTHMUS_ALLREDUCE, memory::heap, in_the_heap},
                    scene{"allreduce_through_the_kernel", ISTHMUS_ALLREDUCE, memory::separate, 4 << 20},
                    scene{"gather_in_the_heap", ISTHMUS_GATHER, memory::heap, in_the_heap / 2},
                    scene{"gather_through_the_kernel", ISTHMUS_GATHER, memory::separate, 4 << 20},
                    scene{"message_through_the_kernel", ISTHMUS_SEND, memory::separate, 4 << 20, true}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace shm_test
