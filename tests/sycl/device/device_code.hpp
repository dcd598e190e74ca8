// Kernels of the device suite (apps/common/kernel.hpp). Device code includes no headers.
#ifndef ISTHMUS_TESTS_SYCL_DEVICE_CODE_HPP
#define ISTHMUS_TESTS_SYCL_DEVICE_CODE_HPP

namespace device_code {

// data[column] = first + column, but only after the host has set *flag. After `max_polls` polls the kernel
// stops and writes nothing, so a host that waits for it fails its test instead of hanging.
struct wait_for_flag {
  static constexpr const char* name = "device_code::wait_for_flag";
  float first;
  unsigned long max_polls;
  void operator()(unsigned long, unsigned long column, const unsigned* flag, float* data) const {
    const volatile unsigned* const released = flag;
    for (unsigned long i = 0; i < max_polls; ++i) {
      if (*released == 0) continue;
      data[column] = first + static_cast<float>(column);
      return;
    }
  }
};

// c[row][column] = sum over i of a[row][i] * b[i][column].
struct multiply {
  static constexpr const char* name = "device_code::multiply";
  unsigned long inner, columns;
  void operator()(unsigned long row, unsigned long column, const float* a, const float* b, float* c) const {
    float sum = 0;
    for (unsigned long i = 0; i < inner; ++i) sum += a[row * inner + i] * b[i * columns + column];
    c[row * columns + column] = sum;
  }
};

}  // namespace device_code

#endif
