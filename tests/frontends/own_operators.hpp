// Global operators of a program that puts a 16-byte header before each block, as memory debuggers do. They end the program
// if it frees a block that another allocator has allocated, or the other way round. Include this in one file of a program.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace own_operators {

constexpr char header[16] = "own operators  ";

inline void* allocate(std::size_t bytes) {
  char* const block = static_cast<char*>(std::malloc(bytes + sizeof header));
  if (block == nullptr) throw std::bad_alloc();
  std::memcpy(block, header, sizeof header);
  return block + sizeof header;
}

inline void release(void* data) noexcept {
  if (data == nullptr) return;
  char* const block = static_cast<char*>(data) - sizeof header;
  if (std::memcmp(block, header, sizeof header) != 0) {
    std::fputs("own_operators: the program frees a block that it did not allocate\n", stderr);
    std::abort();
  }
  std::memset(block, 0, sizeof header);
  std::free(block);
}

}  // namespace own_operators

void* operator new(std::size_t bytes) { return own_operators::allocate(bytes); }
void* operator new[](std::size_t bytes) { return own_operators::allocate(bytes); }
void operator delete(void* data) noexcept { own_operators::release(data); }
void operator delete[](void* data) noexcept { own_operators::release(data); }
void operator delete(void* data, std::size_t) noexcept { own_operators::release(data); }
void operator delete[](void* data, std::size_t) noexcept { own_operators::release(data); }
