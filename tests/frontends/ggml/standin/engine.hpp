// Log of the stand-in engine: what it was opened with and how it was called.
#pragma once

#include <isthmus/isthmus.h>

#include <vector>

struct standin_engine_log {
  std::vector<isthmus_device> devices;
  std::vector<isthmus_stream> streams;
  int calls = 0, closed = 0;
  bool bfloat16_wire = false;
  bool fails = false;  // set by a test
};

extern "C" __attribute__((visibility("default"))) standin_engine_log* standin_engine_opened();
