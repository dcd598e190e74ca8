#include "copy_engine_timer.hpp"

#include <dlfcn.h>

#include <stdexcept>

#include "harness/document.hpp"

namespace copy_bench {

timer::timer(device_ranks& all) : m_all(all), m_tools(static_cast<std::size_t>(all.size())) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver != nullptr)
    m_node_type = reinterpret_cast<decltype(m_node_type)>(dlsym(driver, "cuGraphNodeGetType"));
  if (m_node_type == nullptr) throw std::runtime_error("the CUDA driver has no cuGraphNodeGetType");
  m_all.each([&](int rank) {
    rank_tools& tools = m_tools[static_cast<std::size_t>(rank)];
    check(cudaStreamCreateWithFlags(&tools.stream, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&tools.compute, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&tools.start, &tools.stop, &tools.compute_start, &tools.compute_stop,
                               &tools.overlap_start, &tools.overlap_stop})
      check(cudaEventCreate(event));
  });
}

captured_graph timer::capture(const call_provider& provider, const call_shape& shape, int rank,
                              int calls) const {
  const rank_tools& tools = this->tools(rank);
  m_all.sync_ranks(rank);
  check(cudaStreamBeginCapture(tools.stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    for (int i = 0; i < 2; ++i) provider.enqueue(shape, rank, tools.stream);
    check(cudaEventRecordWithFlags(tools.start, tools.stream, cudaEventRecordExternal));
    for (int i = 0; i < calls; ++i) provider.enqueue(shape, rank, tools.stream);
    check(cudaEventRecordWithFlags(tools.stop, tools.stream, cudaEventRecordExternal));
  } catch (...) {
    cudaStreamEndCapture(tools.stream, &graph);  // unwinding releases resources, which a capture forbids
    throw;
  }
  check(cudaStreamEndCapture(tools.stream, &graph));
  captured_graph result;
  std::size_t nodes = 0;
  check(cudaGraphGetNodes(graph, nullptr, &nodes));
  std::vector<cudaGraphNode_t> all(nodes);
  check(cudaGraphGetNodes(graph, all.data(), &nodes));
  for (cudaGraphNode_t node : all) {
    CUgraphNodeType type{};
    if (m_node_type(node, &type) != CUDA_SUCCESS) throw std::runtime_error("cuGraphNodeGetType failed");
    result.kernels += type == CU_GRAPH_NODE_TYPE_KERNEL;
    result.copies += type == CU_GRAPH_NODE_TYPE_MEMCPY;
  }
  m_all.sync_ranks(rank);  // no graph may be instantiated while a stream captures
  check(cudaGraphInstantiate(&result.graph, graph, 0));
  check(cudaGraphDestroy(graph));
  return result;
}

double elapsed_us(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, from, to));
  return static_cast<double>(ms) * 1e3;
}

double timer::graph_us(const captured_graph& captured, int rank, int calls) const {
  const rank_tools& tools = this->tools(rank);
  m_all.sync_ranks(rank);
  check(cudaGraphLaunch(captured.graph, tools.stream));
  check(cudaStreamSynchronize(tools.stream));
  return m_all.slowest(rank, elapsed_us(tools.start, tools.stop) / calls);
}

double timer::stream_us(const call_provider& provider, const call_shape& shape, int rank, int calls) const {
  const rank_tools& tools = this->tools(rank);
  m_all.sync_ranks(rank);
  for (int i = 0; i < 2; ++i) provider.enqueue(shape, rank, tools.stream);
  check(cudaEventRecord(tools.start, tools.stream));
  for (int i = 0; i < calls; ++i) provider.enqueue(shape, rank, tools.stream);
  check(cudaEventRecord(tools.stop, tools.stream));
  check(cudaStreamSynchronize(tools.stream));
  return m_all.slowest(rank, elapsed_us(tools.start, tools.stop) / calls);
}

std::uint64_t timer::count_wrong_words(const call_provider& provider, const call_shape& shape, int rank) const {
  const std::uint64_t wrong = m_all.count_wrong(provider, shape, rank, tools(rank).stream);
  return static_cast<std::uint64_t>(m_all.slowest(rank, static_cast<double>(wrong)));
}

nlohmann::json record(const call_provider& provider, const call_shape& shape, int ranks,
                      const std::string& mode, const std::vector<double>& us) {
  const double median = bench::median(us);
  nlohmann::json line = bench::record_of(
      {isthmus_collective_name(shape.collective), shape.reduces() ? "float32" : "uint8", shape.bytes, ranks,
       provider.name, provider.backend, mode},
      us, {static_cast<double>(shape.bytes) / median / 1e3, shape.bytes_in(ranks) / median / 1e3});
  line["in_place"] = shape.in_place;
  if (shape.reduces()) line["op"] = "sum";
  if (!provider.options.empty()) line["options"] = provider.options;
  return line;
}

}  // namespace copy_bench
