#include "reference_product.hpp"

#include <cmath>
#include <random>

namespace sycl_device_test {

std::vector<float> random_matrix(std::uint64_t elements, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> numbers(-1, 1);
  std::vector<float> values(elements);
  for (float& value : values) value = numbers(engine);
  return values;
}

void reference_product::add(const product_shape& shape, const std::vector<float>& a, std::uint64_t first,
                            std::uint64_t rows, const std::vector<float>& b) {
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t i = 0; i < shape.inner; ++i)
      for (std::uint64_t column = 0; column < shape.columns; ++column) {
        const double term = static_cast<double>(a[(first + row) * shape.inner + i]) *
                            static_cast<double>(b[i * shape.columns + column]);
        sums[row * shape.columns + column] += term;
        sizes[row * shape.columns + column] += std::abs(term);
      }
}

}  // namespace sycl_device_test
