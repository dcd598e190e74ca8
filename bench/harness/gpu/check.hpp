// Inputs of device buffers, and verification of results with the oracle of the tests.
#pragma once

#include <cstdint>
#include <functional>

#include "calls.hpp"

namespace gpu_bench {

// Fills a buffer of the current device with a repeated pattern of 16 MiB of random numbers, which no cache or
// link can exploit.
void fill_inputs(void* destination, std::uint64_t bytes, int rank, isthmus_datatype datatype = ISTHMUS_FLOAT32);

// Copies the inputs of calls in place to the receive buffers, on the streams.
void prepare_in_place(const device_thread& thread, const device_call& call);

// Makes a call over poisoned output. Returns how many elements of all ranks are wrong at both ends of each block:
// in 256 KiB of data that differs from what the peers sent, or 64 KiB of sums outside of the error bound of any
// order of additions. With `same_bits`, ranks whose output differs from that of rank 0 also count. Send buffers must have
// the contents of fill_inputs: uint8 is checked as float32. Collective over the threads.
std::uint64_t count_wrong(const device_thread& thread, const device_call& call, bool same_bits = false);

}  // namespace gpu_bench
