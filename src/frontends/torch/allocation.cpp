// The operators new and delete of this extension, which the process can replace.
//
// PyTorch frees objects that the extension allocated, and the other way round. The extension contains its own C++
// runtime with hidden symbols, so the hidden operators would ignore those of the program or of a preloaded allocator,
// which PyTorch uses. The definitions below are exported instead: the dynamic linker prefers those of the process, and
// otherwise these allocate like the operators of libstdc++.so.
#include <algorithm>
#include <cstdlib>
#include <new>

void* operator new(std::size_t bytes) {
  while (true) {
    if (void* block = std::malloc(std::max<std::size_t>(bytes, 1))) return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  while (true) {
    if (void* block = std::aligned_alloc(unit, (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit))
      return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }

// The other forms call the ones above, which the process may have replaced.
void* operator new[](std::size_t bytes) { return ::operator new(bytes); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return ::operator new(bytes, alignment); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
  return ::operator new(bytes);
} catch (...) {
  return nullptr;
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept try {
  return ::operator new[](bytes);
} catch (...) {
  return nullptr;
}
void operator delete(void* block, std::size_t) noexcept { ::operator delete(block); }
void operator delete[](void* block) noexcept { ::operator delete(block); }
void operator delete[](void* block, std::size_t) noexcept { ::operator delete[](block); }
void operator delete(void* block, std::size_t, std::align_val_t alignment) noexcept {
  ::operator delete(block, alignment);
}
void operator delete[](void* block, std::align_val_t alignment) noexcept {
  ::operator delete(block, alignment);
}
void operator delete[](void* block, std::size_t, std::align_val_t alignment) noexcept {
  ::operator delete[](block, alignment);
}
void operator delete(void* block, const std::nothrow_t&) noexcept { ::operator delete(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { ::operator delete[](block); }
