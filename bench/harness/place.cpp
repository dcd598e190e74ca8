#include "place.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "base/dynamic_library.hpp"

namespace bench {
namespace {

// The functions of the device runtime for graphs, which Isthmus itself does not need.
struct graph_functions {
  int (*begin_capture)(void* stream, int mode);
  int (*end_capture)(void* stream, void** graph);
  int (*record_event)(void* event, void* stream, unsigned flags);
  int (*instantiate)(void** executable, void* graph, unsigned long long flags);
  int (*launch)(void* executable, void* stream);
  int (*destroy)(void* graph);
  int (*destroy_executable)(void* executable);

  explicit graph_functions(isthmus_platform platform) {
    const bool is_cuda = platform == ISTHMUS_PLATFORM_CUDA;
    const auto vendor =
        is_cuda ? isthmus::gpu::vendor_library::cuda_runtime : isthmus::gpu::vendor_library::hip;
    std::string reason;
    const auto file = isthmus::dynamic_library::open(isthmus::gpu::library_search(vendor), reason);
    isthmus::symbol_loader loader(file, is_cuda ? "cuda" : "hip");
    loader.load_required(begin_capture, "StreamBeginCapture");
    loader.load_required(end_capture, "StreamEndCapture");
    loader.load_required(record_event, "EventRecordWithFlags");
    loader.load_required(instantiate, "GraphInstantiateWithFlags");
    loader.load_required(launch, "GraphLaunch");
    loader.load_required(destroy, "GraphDestroy");
    loader.load_required(destroy_executable, "GraphExecDestroy");
    if (!loader.first_missing().empty())
      throw std::runtime_error("the device runtime has no function " + loader.first_missing());
  }
};

constexpr unsigned external_event = 1;  // recorded by each launch of the graph

void* allocate_on_host(std::uint64_t bytes) {
  void* pointer = nullptr;
  if (posix_memalign(&pointer, 4096, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
  return pointer;
}

}  // namespace

memory_place::memory_place(isthmus_device device) : m_device(device) {
  if (is_host()) return;
  if (const std::string reason = m_runtime.load(device.platform, nullptr, nullptr); !reason.empty())
    throw std::runtime_error(reason);
  check(m_runtime.set_device(device.ordinal));
  check(m_runtime.stream_create(&m_stream, isthmus::gpu::non_blocking_stream));
  check(m_runtime.event_create(&m_begin, 0));
  check(m_runtime.event_create(&m_end, 0));
}

memory_place::~memory_place() {
  for (void* event : {m_begin, m_end})
    if (event != nullptr) m_runtime.event_destroy(event);
  if (m_stream != nullptr) m_runtime.stream_destroy(m_stream);
}

void* memory_place::allocate(std::uint64_t bytes) const {
  if (is_host()) return allocate_on_host(bytes);
  void* pointer = nullptr;
  check(m_runtime.malloc(&pointer, bytes == 0 ? 1 : bytes));
  return pointer;
}

void* memory_place::allocate_pinned(std::uint64_t bytes) const {
  if (is_host()) return allocate_on_host(bytes);
  void* pointer = nullptr;
  check(m_runtime.host_alloc(&pointer, bytes == 0 ? 1 : bytes, 0));
  return pointer;
}

void memory_place::release(void* pointer) const {
  is_host() ? std::free(pointer) : void(m_runtime.free(pointer));
}
void memory_place::release_pinned(void* pointer) const {
  is_host() ? std::free(pointer) : void(m_runtime.host_free(pointer));
}

void memory_place::copy(void* to, const void* from, std::uint64_t bytes) const {
  if (bytes == 0) return;
  if (is_host())
    std::memcpy(to, from, bytes);
  else
    check(m_runtime.memcpy_async(to, from, bytes, isthmus::gpu::memcpy_default, m_stream));
}

void memory_place::wait() const {
  if (!is_host()) check(m_runtime.device_synchronize());
}

double memory_place::stream_us(const std::function<void()>& align, const std::function<void()>& work) {
  align();
  check(m_runtime.event_record(m_begin, m_stream));
  work();
  check(m_runtime.event_record(m_end, m_stream));
  return elapsed_us();
}

double memory_place::graph_us(const std::function<void()>& align, const std::function<void()>& work) {
  static const graph_functions graphs(m_device.platform);
  void *graph = nullptr, *executable = nullptr;
  check(graphs.begin_capture(m_stream, isthmus::gpu::capture_mode_relaxed));
  try {
    align();
    check(graphs.record_event(m_begin, m_stream, external_event));
    work();
    check(graphs.record_event(m_end, m_stream, external_event));
  } catch (...) {
    graphs.end_capture(m_stream, &graph);
    throw;
  }
  check(graphs.end_capture(m_stream, &graph));
  check(graphs.instantiate(&executable, graph, 0));
  check(graphs.destroy(graph));
  check(graphs.launch(executable, m_stream));
  const double us = elapsed_us();
  check(graphs.destroy_executable(executable));
  return us;
}

double memory_place::elapsed_us() {
  if (m_runtime.event_elapsed == nullptr) throw std::runtime_error("the device runtime has no event timer");
  wait();
  float milliseconds = 0;
  check(m_runtime.event_elapsed(&milliseconds, m_begin, m_end));
  return static_cast<double>(milliseconds) * 1e3;
}

}  // namespace bench
