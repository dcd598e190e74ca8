// Times of calls on devices, issued directly on streams and in captured graphs. A time is per call and the maximum
// over ranks. Two calls before each measurement align the ranks. All functions are collective over the threads.
#pragma once

#include "calls.hpp"

namespace gpu_bench {

struct captured_graph {
  std::vector<cudaGraphExec_t> graphs;  // one for each lane
  int calls = 0;                        // timed calls
  int kernels = 0, copies = 0;  // nodes of the first lane, including the two calls before the timed ones
};

captured_graph capture(const device_thread& thread, const device_call& call, int calls);
double graph_us(const device_thread& thread, const device_call& call, const captured_graph& captured);
double stream_us(const device_thread& thread, const device_call& call, int calls);
void destroy(const captured_graph& captured);

}  // namespace gpu_bench
