#include <array>

#include "kernels/kernels.hpp"

namespace isthmus::cpu {

extern const kernel_table baseline_kernels;
extern const kernel_table avx2_kernels;
extern const kernel_table avx512_kernels;

namespace {

// The tables that this processor supports, best first, NULL-terminated.
using usable_list = std::array<const kernel_table*, 4>;

#if defined(ISTHMUS_X86_KERNELS)
usable_list list_usable_kernels() noexcept {
  __builtin_cpu_init();
  usable_list tables{};
  std::size_t n = 0;
  if (__builtin_cpu_supports("x86-64-v4")) tables[n++] = &avx512_kernels;
  if (__builtin_cpu_supports("x86-64-v3")) tables[n++] = &avx2_kernels;
  tables[n] = &baseline_kernels;
  return tables;
}
#else
usable_list list_usable_kernels() noexcept { return {&baseline_kernels}; }
#endif

}  // namespace

const kernel_table* const* usable_kernels() noexcept {
  static const usable_list tables = list_usable_kernels();
  return tables.data();
}

const kernel_table& kernels() noexcept { return *usable_kernels()[0]; }

}  // namespace isthmus::cpu
