// Random matrices, and their products in float64.
#pragma once

#include <cstdint>
#include <vector>

namespace sycl_device_test {

// inner and columns are odd: no row is aligned to more than an element.
struct product_shape {
  std::uint64_t rows, inner, columns;  // rows of each rank
  std::uint32_t chunks;
};

std::vector<float> random_matrix(std::uint64_t elements, std::uint64_t seed);

// A product, term by term, with the sums of the absolute terms.
struct reference_product {
  explicit reference_product(std::uint64_t elements) : sums(elements), sizes(elements) {}
  // Adds the product of `rows` rows of a, from row `first`, and b.
  void add(const product_shape& shape, const std::vector<float>& a, std::uint64_t first, std::uint64_t rows,
           const std::vector<float>& b);
  std::vector<double> sums, sizes;
};

}  // namespace sycl_device_test
