// A stand-in for libcuda.so.1 that reports the device of a stream. The context is the stream itself.

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
