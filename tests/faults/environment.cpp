// The environment of a rank: its trial, its buffers, its event log.
#include <dlfcn.h>
#include <fcntl.h>
#include <isthmus/memory.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

#include "faults/worker.hpp"

namespace faults {
namespace {

std::string variable(const char* name, const char* fallback = "") {
  const char* const value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

class host_buffers final : public trial_buffers {
 public:
  std::int32_t* memory() const override { return const_cast<std::int32_t*>(m_memory.data()); }

 private:
  std::vector<std::int32_t> m_memory = std::vector<std::int32_t>(buffer_elements);
};

// Buffers on a device whose memory the host can access: the stand-in, whose functions are those of CUDA.
class device_buffers final : public trial_buffers {
 public:
  device_buffers(const trial& spec, isthmus_communicator communicator, int device)
      : m_spec(spec), m_rank(device) {
    void* const library = dlopen(variable("ISTHMUS_CUDA_RUNTIME_LIBRARY").c_str(), RTLD_NOW);
    if (library == nullptr)
      throw std::runtime_error(
          "cannot load the stand-in of the CUDA runtime; check ISTHMUS_CUDA_RUNTIME_LIBRARY");
    const auto function = [&](const char* name) {
      void* const symbol = dlsym(library, name);
      if (symbol == nullptr) throw std::runtime_error(std::string("the stand-in has no function ") + name);
      return symbol;
    };
    m_query = reinterpret_cast<query*>(function("cudaStreamQuery"));
    reinterpret_cast<int (*)(int)>(function("cudaSetDevice"))(device);
    reinterpret_cast<int (*)(void**, unsigned)>(function("cudaStreamCreateWithFlags"))(&m_stream, 1);
    if (isthmus_memory_allocate_symmetric(communicator, buffer_elements * sizeof(std::int32_t), &m_memory) !=
        ISTHMUS_SUCCESS)
      m_memory = nullptr;
  }
  std::int32_t* memory() const override { return static_cast<std::int32_t*>(m_memory); }
  isthmus_stream stream() const override { return m_stream; }
  isthmus_status finish(isthmus_communicator communicator) const override {
    while (m_query(m_stream) != 0) {
      if (const auto status = isthmus_communicator_async_error(communicator); status != ISTHMUS_SUCCESS) {
        drain();
        return status;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return isthmus_communicator_async_error(communicator);
  }

 private:
  using query = int(void*);

  // Work on the stream uses buffers of the program, which must wait for it; the stream must become
  // idle in time.
  void drain() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    while (m_query(m_stream) != 0) {
      if (std::chrono::steady_clock::now() > end)
        return write_event(m_spec, m_rank, {{"event", "stuck_stream"}});
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  const trial& m_spec;
  int m_rank;
  query* m_query = nullptr;
  void* m_stream = nullptr;
  void* m_memory = nullptr;
};

}  // namespace

trial trial_of_environment() {
  trial spec;
  spec.fault = variable("FAULT");
  spec.faulty_rank = std::stoi(variable("FAULT_RANK", "0"));
  spec.fault_call = std::stoull(variable("FAULT_AT", "0"));
  spec.is_at_creation = variable("FAULT_AT") == "0";
  spec.delay_us = std::stoi(variable("FAULT_DELAY_US", "0"));
  spec.calls = std::stoull(variable("FAULT_CALLS", "100"));
  spec.seed = std::stoull(variable("FAULT_SEED", "1"));
  spec.timeout_s = std::stod(variable("FAULT_TIMEOUT_S", "3"));
  spec.config = variable("FAULT_CONFIG");
  spec.platform = variable("FAULT_PLATFORM", "host");
  spec.folder = variable("FAULT_FOLDER", ".");
  spec.plain_calls = variable("FAULT_PLAIN_CALLS") == "1";
  spec.is_checked = variable("FAULT_CHECKED", "1") == "1";
  return spec;
}

std::unique_ptr<trial_buffers> make_buffers(const trial& spec, isthmus_communicator communicator, int rank) {
  if (spec.platform == "host") return std::make_unique<host_buffers>();
  auto buffers = std::make_unique<device_buffers>(spec, communicator, rank);
  return buffers->memory() == nullptr ? nullptr : std::move(buffers);
}

void wait_until_settled(const trial& spec) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!std::filesystem::exists(spec.folder + "/settled") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void write_event(const trial& spec, int rank, nlohmann::json event) {
  event["time"] = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  event["pid"] = getpid();
  const std::string line = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  // Opened at the start, because a rank may have no free descriptor later.
  static const int file = open((spec.folder + "/rank." + std::to_string(rank)).c_str(),
                               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  [[maybe_unused]] const ssize_t written = write(file, line.data(), line.size());
}

std::size_t count_descriptors() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(folder), end(folder)));
}

}  // namespace faults
