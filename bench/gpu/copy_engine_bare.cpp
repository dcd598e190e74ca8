// Copies without a library, which are the limit of a gather by copy engines. Parts of the protocol of the backend can
// be added to them, to find out how much of the slowdown of concurrent work each part causes.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "copy_engine.hpp"

namespace gpu_bench {
namespace {

constexpr std::size_t words_per_rank = 4 * 64;

bool has_part(const std::string& parts, const std::string& part) {
  return (',' + parts + ',').find(',' + part + ',') != std::string::npos;
}

void check_parts(const std::string& parts) {
  static const std::vector<std::string> known = {"pull",  "halves", "writes", "remote",
                                                 "waits", "host",   "ranks"};
  std::istringstream list(parts);
  for (std::string part; std::getline(list, part, ',');)
    if (std::ranges::find(known, part) == known.end())
      throw std::runtime_error("--bare " + parts + ": unknown part " + part +
                               "; use a list of pull, halves, writes, remote, waits, host and ranks");
}

// Words that a stream writes and waits for, as one command of the driver.
class word_operations {
 public:
  void write(std::uint32_t* word, std::uint32_t value) {
    CUstreamBatchMemOpParams step{};
    step.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    step.writeValue.address = reinterpret_cast<CUdeviceptr>(word);
    step.writeValue.value = value;
    // CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER is not supported by version 2 of the interface.
    step.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    m_steps.push_back(step);
  }
  void wait_equal(std::uint32_t* word, std::uint32_t value) {
    CUstreamBatchMemOpParams step{};
    step.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    step.waitValue.address = reinterpret_cast<CUdeviceptr>(word);
    step.waitValue.value = value;
    step.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    m_steps.push_back(step);
  }
  void enqueue(cudaStream_t stream, const std::string& parts) {
    static const auto enqueue_all = [] {
      void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
      void* const symbol = driver != nullptr ? dlsym(driver, "cuStreamBatchMemOp_v2") : nullptr;
      if (symbol == nullptr) throw std::runtime_error("the CUDA driver has no cuStreamBatchMemOp_v2");
      return reinterpret_cast<CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned)>(symbol);
    }();
    if (m_steps.empty()) return;
    const CUresult code = enqueue_all(stream, static_cast<unsigned>(m_steps.size()), m_steps.data(), 0);
    if (code == CUDA_SUCCESS) return;
    // The runtime uses the error codes of the driver.
    throw std::runtime_error("--bare " + parts + ": cuStreamBatchMemOp_v2 of " +
                             std::to_string(m_steps.size()) + " operations failed with error " +
                             std::to_string(code) + " (" + cudaGetErrorName(static_cast<cudaError_t>(code)) +
                             ')');
  }

 private:
  std::vector<CUstreamBatchMemOpParams> m_steps;
};

// Words of one rank, in its device memory and readable by all devices.
struct rank_words {
  std::uint32_t* base;
  std::uint32_t* pending(std::size_t peer) const { return base + peer; }
  std::uint32_t* ready(std::size_t peer) const { return base + 64 + peer; }
  std::uint32_t* spare(std::size_t peer) const { return base + 128 + peer; }
  std::uint32_t* zero() const { return base + 192; }
};

struct bare_call {
  word_operations before, after;
  std::vector<std::pair<std::byte*, const std::byte*>> copies;
  std::shared_ptr<void> host_word;
  std::uint64_t bytes;
  std::string parts;

  void run(cudaStream_t stream) {
    before.enqueue(stream, parts);
    for (const auto& [destination, source] : copies)
      check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream));
    after.enqueue(stream, parts);
  }
};

// Operations like those of the protocol, without a rank that waits for another one.
void add_free_words(bare_call& call, const std::string& parts, const rank_words& own, const rank_words& peer,
                    std::size_t index) {
  if (has_part(parts, "waits")) {
    call.before.wait_equal(own.zero(), 0);
    call.after.wait_equal(own.zero(), 0);
  }
  if (!has_part(parts, "writes") && !has_part(parts, "remote")) return;
  std::uint32_t* const target = has_part(parts, "remote") ? peer.spare(index) : own.spare(index);
  for (const std::uint32_t value : {1U, 1U, 0U}) call.before.write(target, value);
  call.after.write(target, 0);
}

// The protocol of zero_copy and push.
void add_protocol(bare_call& call, const std::vector<rank_words>& words, std::size_t own) {
  const auto each_peer = [&](auto&& work) {
    for (std::size_t i = 1; i < words.size(); ++i) work((own + i) % words.size());
  };
  each_peer([&](std::size_t peer) { call.before.write(words[own].pending(peer), 1); });
  each_peer([&](std::size_t peer) { call.before.write(words[peer].ready(own), 1); });
  each_peer([&](std::size_t peer) { call.before.wait_equal(words[own].ready(peer), 1); });
  each_peer([&](std::size_t peer) { call.before.write(words[own].ready(peer), 0); });
  each_peer([&](std::size_t peer) { call.after.write(words[peer].pending(own), 0); });
  each_peer([&](std::size_t peer) { call.after.wait_equal(words[own].pending(peer), 0); });
}

}  // namespace

void copy_comparison::add_bare_copies(const std::string& parts) {
  check_parts(parts);
  copy_provider provider{"bare_copies", "cuda", parts, m_providers.front().buffers, {}, {}};
  provider.words.resize(static_cast<std::size_t>(m_ranks.size()));
  // Like the buffers: mapped for all devices, as the words of the backend are.
  const auto allocate = m_nccl.function<int(void**, std::size_t)>("ncclMemAlloc");
  m_ranks.each([&](const device_thread& self) {
    std::uint32_t*& words = provider.words[static_cast<std::size_t>(self.rank())];
    bench::check_nccl(allocate(reinterpret_cast<void**>(&words), words_per_rank * sizeof(std::uint32_t)));
    check(cudaMemset(words, 0, words_per_rank * sizeof(std::uint32_t)));
    for (int peer = 0; peer < self.size(); ++peer) {
      if (peer == self.rank()) continue;
      const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
      if (code != cudaErrorPeerAccessAlreadyEnabled) check(code);
      cudaGetLastError();  // forget that it was enabled
    }
    check(cudaDeviceSynchronize());
  });
  m_providers.push_back(std::move(provider));
}

device_call make_bare_call(const device_thread& self, const copy_provider& provider,
                           const bench_case& test_case) {
  const auto own = static_cast<std::size_t>(self.rank());
  const std::string& parts = provider.options;
  const std::vector<rank_buffers>& buffers = provider.buffers;
  std::vector<rank_words> words;
  for (std::uint32_t* each : provider.words) words.push_back({each});

  bare_call call;
  call.parts = parts;
  const int pieces = has_part(parts, "halves") ? 2 : 1;
  call.bytes = test_case.bytes / static_cast<unsigned>(pieces);
  for (std::size_t i = 1; i < buffers.size(); ++i) {
    const std::size_t peer = (own + i) % buffers.size();
    add_free_words(call, parts, words[own], words[peer], own);
    // A rank sends its own block, or fetches the one of the peer.
    const bool is_pull = has_part(parts, "pull");
    const std::uint64_t offset = (is_pull ? peer : own) * test_case.bytes;
    std::byte* const destination = buffers[is_pull ? own : peer].recv + offset;
    const std::byte* const source = buffers[is_pull ? peer : own].recv + offset;
    for (int piece = 0; piece < pieces; ++piece) {
      const std::uint64_t begin = static_cast<unsigned>(piece) * call.bytes;
      call.copies.emplace_back(destination + begin, source + begin);
    }
  }
  if (has_part(parts, "ranks")) add_protocol(call, words, own);
  if (has_part(parts, "host")) {
    void* word = nullptr;
    check(cudaHostAlloc(&word, sizeof(std::uint32_t), cudaHostAllocPortable | cudaHostAllocMapped));
    call.host_word.reset(word, [](void* pointer) { cudaFreeHost(pointer); });
    call.before.write(static_cast<std::uint32_t*>(word), 1);
  }

  device_call result{{"bare_copies", "", "", {}}, test_case, {buffers[own]}};
  result.run = [call, stream = self.stream()]() mutable { call.run(stream); };
  return result;
}

}  // namespace gpu_bench
