#include "backends/shm/write_gate.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace isthmus::shm {
namespace {

std::byte* allocate_pages(std::uint64_t bytes) noexcept {
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<std::byte*>(pages);
}

bool replace_pages(std::byte* begin, std::uint64_t bytes) noexcept {
  if (bytes == 0) return true;
  std::byte* const copy = allocate_pages(bytes);
  if (copy == nullptr) return false;
  std::memcpy(copy, begin, bytes);
  if (::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) != MAP_FAILED) return true;
  ::munmap(copy, bytes);
  return false;
}

}  // namespace

write_gate::write_gate() : m_page(allocate_pages(page_bytes)) {
  if (m_page == nullptr) throw std::bad_alloc();
}

// A closed gate keeps its address until the process exits, so that late ranks never write to
// other memory there.
write_gate::~write_gate() {
  if (!m_is_closed) ::munmap(m_page, page_bytes);
}

void write_gate::close() noexcept {
  m_is_closed = true;
  ::mprotect(m_page, page_bytes, PROT_NONE);
}

// Other threads of the program may write to the first and the last page. Each of these pages is replaced
// separately, to keep the time between copying and replacing it short.
bool make_private(const exposed_range& memory) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.begin);
  std::byte* const begin = memory.begin - address % page_bytes;
  const std::uint64_t bytes = round_up(memory.bytes + address % page_bytes, page_bytes);
  const std::uint64_t first = std::min<std::uint64_t>(bytes, page_bytes);
  const std::uint64_t last = bytes > first ? page_bytes : 0;
  return replace_pages(begin, first) && replace_pages(begin + first, bytes - first - last) &&
         replace_pages(begin + (bytes - last), last);
}

}  // namespace isthmus::shm
