#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "captured_work.hpp"

namespace fused_test {
namespace {

void check(cudaError_t error, const char* function) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(function) + ": " + cudaGetErrorString(error));
}

}  // namespace

captured_work::captured_work(void* stream, std::function<void()> work) : m_stream(stream) {
  const auto native = static_cast<cudaStream_t>(stream);
  check(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  work();
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(native, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  m_graph = executable;
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

captured_work::~captured_work() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(m_graph)); }

void captured_work::launch() {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(m_graph), static_cast<cudaStream_t>(m_stream)),
        "cudaGraphLaunch");
}

}  // namespace fused_test
