#include "timer.hpp"

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>

#include "check.hpp"

namespace gpu_bench {
namespace {

// From the driver: the runtime has no type for nodes in which streams write or wait for memory words.
CUgraphNodeType type_of(cudaGraphNode_t node) {
  static const auto get_type = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* const symbol = driver != nullptr ? dlsym(driver, "cuGraphNodeGetType") : nullptr;
    if (symbol == nullptr) throw std::runtime_error("the CUDA driver has no cuGraphNodeGetType");
    return reinterpret_cast<decltype(&cuGraphNodeGetType)>(symbol);
  }();
  CUgraphNodeType type{};
  if (get_type(node, &type) != CUDA_SUCCESS) throw std::runtime_error("cuGraphNodeGetType failed");
  return type;
}

void count_nodes(cudaGraph_t graph, captured_graph& result) {
  std::size_t nodes = 0;
  check(cudaGraphGetNodes(graph, nullptr, &nodes));
  std::vector<cudaGraphNode_t> all(nodes);
  check(cudaGraphGetNodes(graph, all.data(), &nodes));
  for (cudaGraphNode_t node : all) {
    const CUgraphNodeType type = type_of(node);
    result.kernels += type == CU_GRAPH_NODE_TYPE_KERNEL ? 1 : 0;
    result.copies += type == CU_GRAPH_NODE_TYPE_MEMCPY ? 1 : 0;
  }
}

void record(const device_thread& thread, cudaEvent_t device_lane::* event, unsigned flags) {
  thread.each([&](const device_lane& lane, std::size_t) {
    check(cudaEventRecordWithFlags(lane.*event, lane.stream, flags));
  });
}

// Enqueues two calls, and the timed calls between the events.
void enqueue(const device_thread& thread, const device_call& call, int calls, unsigned event_flags) {
  for (int i = 0; i < 2; ++i) call.run();
  record(thread, &device_lane::start, event_flags);
  for (int i = 0; i < calls; ++i) call.run();
  record(thread, &device_lane::stop, event_flags);
}

double slowest_us(const device_thread& thread, int calls) {
  thread.wait();
  double worst = 0;
  thread.each([&](const device_lane& lane, std::size_t) {
    worst = std::max(worst, elapsed_us(lane.start, lane.stop) / calls);
  });
  return thread.slowest(worst);
}

}  // namespace

captured_graph capture(const device_thread& thread, const device_call& call, int calls) {
  captured_graph result;
  result.calls = calls;
  std::vector<cudaGraph_t> graphs(thread.lanes().size());
  thread.sync_threads();
  thread.each([](const device_lane& lane, std::size_t) {
    check(cudaStreamBeginCapture(lane.stream, cudaStreamCaptureModeThreadLocal));
  });
  try {
    enqueue(thread, call, calls, cudaEventRecordExternal);
  } catch (...) {
    // Unwinding releases resources, which a capture forbids.
    for (const device_lane& lane : thread.lanes()) cudaStreamEndCapture(lane.stream, &graphs.front());
    throw;
  }
  thread.each(
      [&](const device_lane& lane, std::size_t i) { check(cudaStreamEndCapture(lane.stream, &graphs[i])); });
  count_nodes(graphs.front(), result);
  thread.sync_threads();  // no graph may be instantiated while a stream captures
  thread.each([&](const device_lane&, std::size_t i) {
    check(cudaGraphInstantiate(&result.graphs.emplace_back(), graphs[i], 0));
    check(cudaGraphDestroy(graphs[i]));
  });
  return result;
}

double graph_us(const device_thread& thread, const device_call& call, const captured_graph& captured) {
  if (call.test_case.accumulates()) prepare_in_place(thread, call);
  thread.sync_threads();
  thread.each(
      [&](const device_lane& lane, std::size_t i) { check(cudaGraphLaunch(captured.graphs[i], lane.stream)); });
  return slowest_us(thread, captured.calls);
}

double stream_us(const device_thread& thread, const device_call& call, int calls) {
  if (call.test_case.accumulates()) prepare_in_place(thread, call);
  thread.sync_threads();
  enqueue(thread, call, calls, cudaEventRecordDefault);
  return slowest_us(thread, calls);
}

void destroy(const captured_graph& captured) {
  for (cudaGraphExec_t graph : captured.graphs) check(cudaGraphExecDestroy(graph));
}

}  // namespace gpu_bench
