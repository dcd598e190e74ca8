// A stand-in for the CUDA runtime and driver: streams that know their device, and events.
#pragma once

extern "C" {
int cudaEventRecord(void* event, void* stream);
}

namespace standin {
void* make_stream(int ordinal);
int count_of_records();  // calls of cudaEventRecord that arrived
}  // namespace standin
