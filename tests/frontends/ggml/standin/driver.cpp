// A stand-in for libcuda.so.1: which device a stream belongs to. A context is the stream itself here.

namespace {
int* current = nullptr;
}

extern "C" {
int cuStreamGetCtx(void* stream, void** context) {
  *context = stream;
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  current = static_cast<int*>(context);
  return 0;
}
int cuCtxGetDevice(int* device) {
  *device = *current;
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = current;
  current = nullptr;
  return 0;
}
}
