// A stand-in for the CUDA runtime and driver: events, and streams that know their device.
#pragma once

extern "C" {
int cudaEventRecord(void* event, void* stream);
}

namespace standin {
void* make_stream(int ordinal);
int count_of_records();  // number of cudaEventRecord calls
}  // namespace standin
