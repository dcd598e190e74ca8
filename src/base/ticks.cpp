#include "base/ticks.hpp"

#if defined(__x86_64__)
#include <cpuid.h>

namespace isthmus {

bool has_invariant_counter() noexcept {
  static const bool is_supported = [] {
    constexpr unsigned leaf = 0x80000007, invariant_bit = 1u << 8;  // in edx
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(leaf, &eax, &ebx, &ecx, &edx) != 0 && (edx & invariant_bit) != 0;
  }();
  return is_supported;
}

}  // namespace isthmus
#endif
