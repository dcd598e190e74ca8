// A stopped rank that resumes after its peers have aborted must not write into their buffers or report success.
// The peers' errors must name it.
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

#include "backends/shm/peer_memory.hpp"
#include "rank_runner.hpp"

namespace shm_test {
namespace {

using namespace std::chrono_literals;
using failures = std::vector<std::string>;

constexpr float poison = -77;

// Location of the operation's buffers.
enum class memory { heap, separate };

struct gate_case {
  const char* name;
  isthmus_collective collective;
  memory placement;
  std::uint64_t count;      // floats
  bool is_message = false;  // true: a message from rank 1 to rank 0; false: a collective
};

std::ostream& operator<<(std::ostream& out, const gate_case& s) { return out << s.name; }

// State that the processes of one test share, in addition to the shared area of the ranks.
struct shared_state {
  std::atomic<pid_t> late_pid{0};  // the process of rank 1
  std::atomic<bool> checked{false};
};

struct shared_page {
  shared_page() {
    void* const page =
        ::mmap(nullptr, sizeof(shared_state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    state = new (page) shared_state;
  }
  ~shared_page() { ::munmap(state, sizeof(shared_state)); }
  shared_state* operator->() const { return state; }
  shared_state* state;
};

bool is_all(const float* data, std::uint64_t count, float value) {
  for (std::uint64_t i = 0; i < count; ++i)
    if (data[i] != value) return false;
  return true;
}

isthmus_operation make_operation(const gate_case& s, const rank& self, float* send, float* recv) {
  isthmus_operation operation{};
  operation.collective = s.is_message ? (self.number() == 1 ? ISTHMUS_SEND : ISTHMUS_RECV) : s.collective;
  operation.datatype = ISTHMUS_FLOAT32;
  operation.count = s.count;
  operation.send_buf = send;
  operation.recv_buf = recv;
  operation.root = s.is_message ? 1 - self.number() : s.collective == ISTHMUS_SCATTER ? 1 : 0;
  return operation;
}

// Calls the operation until rank 1 is stopped during a call. Then rank 0 fails, reuses its buffer, resumes rank
// 1 and checks the buffer.
class gate_scenario {
 public:
  gate_scenario(const gate_case& s, const shared_page& shared, rank& self, unsigned seed)
      : m_case(s), m_shared(shared), m_self(self), m_random(seed) {
    const std::uint64_t send_blocks = s.collective == ISTHMUS_SCATTER ? 2 : 1,
                        recv_blocks = s.collective == ISTHMUS_GATHER ? 2 : 1;
    m_send_count = send_blocks * s.count;
    if (s.placement == memory::heap) {
      m_send = reinterpret_cast<float*>(self.heap(0)) + 5;  // not page-aligned
      m_recv = reinterpret_cast<float*>(self.heap(1)) + 5;
    } else {
      m_own.resize((send_blocks + recv_blocks) * s.count);
      m_send = m_own.data();
      m_recv = m_send + m_send_count;
    }
    m_recv_count = s.is_message && self.number() == 1 ? 0 : recv_blocks * s.count;
  }

  void run() {
    check(m_self.create() == ISTHMUS_SUCCESS, "create: " + m_self.failure());
    std::fill_n(m_send, m_send_count, 1.0f);
    call();  // the first call is not disturbed
    m_self.barrier();
    if (m_self.number() == 1)
      run_late_rank();
    else
      run_rank_0();
  }

 private:
  isthmus_status call() {
    return m_self.run(make_operation(m_case, m_self, m_send, m_recv),
                      m_case.is_message ? nullptr : "zero_copy");
  }

  void run_late_rank() {
    m_shared->late_pid = ::getpid();
    isthmus_status status = ISTHMUS_SUCCESS;
    while (status == ISTHMUS_SUCCESS) {
      std::fill_n(m_recv, m_recv_count, 0.0f);
      status = call();
      if (status == ISTHMUS_SUCCESS && !m_case.is_message && m_case.collective == ISTHMUS_ALLREDUCE)
        check(is_all(m_recv, m_case.count, 2), "a success with wrong sums");
    }
    check(status == ISTHMUS_ERROR_REMOTE, "the late rank: " + std::to_string(status) + " " + m_self.failure());
    while (!m_shared->checked) std::this_thread::sleep_for(1ms);
  }

  void run_rank_0() {
    while (m_shared->late_pid == 0) std::this_thread::sleep_for(1ms);
    std::thread stop_thread([this, pause = std::uniform_int_distribution<int>(0, 20'000)(m_random)] {
      std::this_thread::sleep_for(5ms + std::chrono::microseconds(pause));
      ::kill(m_shared->late_pid, SIGSTOP);
    });
    isthmus_status status = ISTHMUS_SUCCESS;
    while (status == ISTHMUS_SUCCESS) status = call();
    stop_thread.join();
    // the call has returned, so the caller reuses its buffers
    std::fill_n(m_recv, m_recv_count, poison);
    std::fill_n(m_send, m_send_count, poison);
    ::kill(m_shared->late_pid, SIGCONT);
    std::this_thread::sleep_for(50ms);
    m_shared->checked = true;
    const bool is_rank_named = m_self.failure().find("rank 1") != std::string::npos &&
                               m_self.failure().find("is stopped") != std::string::npos;
    check(is_all(m_recv, m_recv_count, poison), "the late rank wrote into the buffer");
    check(status == ISTHMUS_ERROR_TIMEOUT && is_rank_named, std::to_string(status) + " " + m_self.failure());
  }

  const gate_case& m_case;
  const shared_page& m_shared;
  rank& m_self;
  std::minstd_rand m_random;
  std::vector<float> m_own;
  float *m_send = nullptr, *m_recv = nullptr;
  std::uint64_t m_send_count = 0, m_recv_count = 0;
};

class late_rank : public testing::TestWithParam<gate_case> {};

TEST_P(late_rank, writes_nothing_after_peers_have_aborted) {
  const gate_case& s = GetParam();
  for (unsigned i = 0; i < 4; ++i) {
    run_setup setup;
    setup.ranks = setup.processes = 2;
    setup.timeout_s = 0.4;  // on a busy machine a rank can be 0.1 s late without being stopped
    if (s.is_message) setup.options["spins"] = "4000";
    const shared_page shared;
    ASSERT_EQ(run_ranks(setup, [&](rank& self) { gate_scenario(s, shared, self, i).run(); }), failures{}) << i;
  }
}

TEST(shm_write_gate, closed_gate_stops_kernel_copies) {
  std::byte key{}, from{7}, to{};
  std::byte* address = nullptr;
  const auto copy = [&] {
    const iovec local[] = {{&key, 1}, {&from, 1}}, remote[] = {{address, 1}, {&to, 1}};
    return ::process_vm_writev(::getpid(), local, 2, remote, 2, 0);
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
  EXPECT_EQ(copy(), -1);  // its address is not reused
  EXPECT_EQ(to, std::byte{});
}

TEST(shm_write_gate, private_pages_keep_content_and_hide_later_writes) {
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
      const bool is_released = ::read(go[0], &ignored, 1) == 1;
      if (is_released) std::memset(data, 2, bytes);
      ::_exit(is_released ? 0 : 1);
    }
    EXPECT_TRUE(isthmus::shm::make_private({data + begin, length, true, true}));
    EXPECT_EQ(std::count(data, data + bytes, std::byte{1}), static_cast<std::ptrdiff_t>(bytes));
    EXPECT_EQ(::write(go[1], "", 1), 1);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(std::count(data + begin, data + begin + length, std::byte{1}),
              static_cast<std::ptrdiff_t>(length));
    EXPECT_EQ(data[bytes - 1], std::byte{2}) << "pages that were not exposed stay shared";
    ::munmap(pages, bytes);
    ::close(go[0]);
    ::close(go[1]);
  }
}

constexpr std::uint64_t in_the_heap = heap_block_bytes / sizeof(float) - 1000;
INSTANTIATE_TEST_SUITE_P(
    shm_write_gate, late_rank,
    testing::Values(gate_case{"allreduce_in_the_heap", ISTHMUS_ALLREDUCE, memory::heap, in_the_heap},
                    gate_case{"allreduce_through_the_kernel", ISTHMUS_ALLREDUCE, memory::separate, 4 << 20},
                    gate_case{"gather_in_the_heap", ISTHMUS_GATHER, memory::heap, in_the_heap / 2},
                    gate_case{"gather_through_the_kernel", ISTHMUS_GATHER, memory::separate, 4 << 20},
                    gate_case{"scatter_in_the_heap", ISTHMUS_SCATTER, memory::heap, in_the_heap / 2},
                    gate_case{"scatter_through_the_kernel", ISTHMUS_SCATTER, memory::separate, 4 << 20},
                    gate_case{"message_through_the_kernel", ISTHMUS_SEND, memory::separate, 4 << 20, true}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace shm_test
