// The runtime functions for both prefixes, cuda* and hip*; device_names.cpp.in generates the names.
#pragma once

#include <cstddef>

namespace standin {

int get_device_count(int* count);
int get_device(int* device);
int set_device(int device);
int bus_id(char* text, int capacity, int device);
int get_attribute(int* value, int attribute, int device);
int device_synchronize();
int allocate(void** pointer, std::size_t bytes);
int allocate_host(void** pointer, std::size_t bytes);
int release(void* pointer);
int release_async(void* pointer, void* stream);
int copy_async(void* to, const void* from, std::size_t bytes, int kind, void* stream);
int stream_create(void** handle, unsigned flags);
int stream_get_flags(void* handle, unsigned* flags);
int stream_destroy(void* handle);
int stream_synchronize(void* handle);
int stream_query(void* handle);
int stream_wait_event(void* stream, void* event);
int launch_host(void* stream, void (*function)(void*), void* argument);
int event_create(void** handle);
int event_destroy(void* handle);
int event_record(void* handle, void* stream);
int event_query(void* handle);
int event_elapsed(float* milliseconds, void* begin, void* end);
int event_synchronize(void* handle);
const char* error_text(int error);

}  // namespace standin
