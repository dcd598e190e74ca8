// A plug-in of gpu_bench (bench/harness/gpu/peer.h) that adds float32 on the host. Device memory of the stand-ins is host memory.
#include <vector>

#include "harness/gpu/peer.h"

namespace {

enum method { sum, incorrect, failing, unsupported };
const char* const methods[] = {"sum", "incorrect", "failing", "unsupported", nullptr};

std::vector<const float*> inputs;

const char* open(const gpu_bench_peer_group* group) {
  if (group->ranks != 2) return "only 2 ranks are supported";
  inputs.clear();
  for (int rank = 0; rank < group->ranks; ++rank)
    inputs.push_back(static_cast<const float*>(group->inputs[rank]));
  return nullptr;
}

int supports(int method, const gpu_bench_peer_call* call) {
  return method != unsupported && call->output != nullptr && call->datatype == ISTHMUS_FLOAT32 ? 1 : 0;
}

const char* enqueue(int method, const gpu_bench_peer_call* call) {
  if (method == failing) return "the stub failed";
  auto* const output = static_cast<float*>(call->output);
  for (uint64_t i = 0; i < call->tokens * call->hidden; ++i) {
    output[i] = method == incorrect ? 1e6F : 0;
    for (const float* input : inputs) output[i] += input[i];
  }
  return nullptr;
}

const gpu_bench_peer peer{STUB_VERSION, "stub 1.0", methods, open, supports, enqueue};

}  // namespace

extern "C" __attribute__((visibility("default"))) const gpu_bench_peer* gpu_bench_peer_library() {
  return &peer;
}
