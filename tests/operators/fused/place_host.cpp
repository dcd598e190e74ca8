#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "place.hpp"

namespace fused_test {

isthmus_platform platform() { return ISTHMUS_PLATFORM_HOST; }
void use_platform(isthmus_platform) { throw std::runtime_error("--platform is for devices"); }
int device_count() { return 1; }
void use_device(int) {}
void* create_stream(int) { return nullptr; }
void destroy_stream(void*) {}
void synchronize(void*) {}
void* allocate(std::size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void release(void* pointer) { std::free(pointer); }
void copy(void* to, const void* from, std::size_t bytes, void*) { std::memcpy(to, from, bytes); }

}  // namespace fused_test
