// The driver functions for both families; cuda_driver.cpp and hip_driver.cpp define the exported names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <vector>

namespace standin {

struct ipc_handle {
  char bytes[64];
};

// Records the call. Fails it if a test requested that, else runs it. Waits while another call frees memory.
int enter_driver(const char* function);
std::shared_mutex& driver_lock();  // of the current device
template <typename Body>
int call(const char* function, Body&& body) {
  if (const int code = enter_driver(function)) return code;
  const std::shared_lock lock(driver_lock());
  return body();
}
// As call(), without the lock, which release() takes.
int call_release(const char* function, void* pointer);

int memory_info(std::size_t* free, std::size_t* total);
int pointer_attribute(void* value, int attribute, void* pointer);
int ipc_get(ipc_handle* handle, void* pointer);
int ipc_open(void** pointer, const ipc_handle& handle);
int stream_is_capturing(void* stream, int* status);
int fill(void* pointer, unsigned char value, std::size_t bytes, void* stream);
int write_word(void* stream, void* word, std::uint32_t value);
int wait_word(void* stream, void* word, std::uint32_t value);
// Runs steps in order. A wait continues when the word has exactly that value.
struct word_step {
  bool waits;
  std::uint32_t* word;
  std::uint32_t value;
};
int words(void* stream, const std::vector<word_step>& steps);
int copy_batch(void** to, void** from, const std::size_t* bytes, std::size_t count, void* stream);
// A module is the output of the stand-in compilers (runtime_compiler.cpp). The output of a real compiler can be
// loaded but not launched.
int exchange_capture_mode(int* mode);
int load_module(void** module, const void* code);
int find_kernel(void** kernel, void* module, const char* name);
struct grid {
  unsigned x, y, z;
  bool is_line() const { return y == 1 && z == 1; }
};
int launch_kernel(void* kernel, const grid& blocks, const grid& threads, unsigned shared, void* stream,
                  void** arguments, void** extra);
int device_name(char* text, int capacity, int device);
int can_access_peer(int* can, int device, int peer);

// The current device, with a stack of contexts.
int push_device(int device);
int pop_device(int* device);

}  // namespace standin
