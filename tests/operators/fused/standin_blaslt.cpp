#include "standin_blaslt.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "oracle/number.hpp"
#include "standins/standin.h"

namespace standin_blaslt {
namespace {

constexpr int success = 0;
constexpr int refused = 7;  // CUBLAS_STATUS_INVALID_VALUE
constexpr std::uint64_t algorithm_id = 0x5ca1ab1e;

struct description {
  int operation = 0, epilogue = 1, bias_type = 0;
  bool transposes_a = false;
  const void* bias = nullptr;
};
struct layout {
  isthmus_datatype type;
  std::uint64_t rows, cols, leading;
};

isthmus_datatype datatype_of(int type) {
  return type == 2 ? ISTHMUS_FLOAT16 : type == 14 ? ISTHMUS_BFLOAT16 : ISTHMUS_FLOAT32;
}

std::uint64_t bytes_of(isthmus_datatype type) { return oracle::bytes_of(type); }

double load(isthmus_datatype type, const void* from, std::uint64_t index) {
  return static_cast<double>(
      oracle::decode(type, static_cast<const std::byte*>(from) + index * bytes_of(type)));
}

// Rounds to the format, then stores the bit pattern of the rounded value.
void store(isthmus_datatype type, double value, void* to, std::uint64_t index) {
  auto* place = static_cast<std::byte*>(to) + index * bytes_of(type);
  const float rounded = static_cast<float>(oracle::round_to(oracle::format_of(type), value));
  std::uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  if (type == ISTHMUS_FLOAT32) return oracle::store_bits(type, bits, place);
  if (type == ISTHMUS_BFLOAT16) return oracle::store_bits(type, bits >> 16, place);
  const std::uint32_t sign = bits >> 31 << 15, magnitude = bits & 0x7fffffffu;
  const std::uint32_t half =
      magnitude < 0x38800000u
          ? static_cast<std::uint32_t>(static_cast<double>(rounded < 0 ? -rounded : rounded) * 0x1p24)
          : (magnitude - 0x38000000u) >> 13;
  oracle::store_bits(type, sign | half, place);
}

struct product {
  description settings;
  layout a, b, c;
  const void *a_data, *b_data;
  const void* c_data;
  void* d_data;
  float alpha, beta;

  // D = alpha op(A) B + beta C + bias, all column-major.
  void run() const {
    const std::uint64_t height = c.rows, width = c.cols, inner = b.rows;
    std::vector<double> left(height * inner), right(inner * width);
    for (std::uint64_t i = 0; i < height; ++i)
      for (std::uint64_t k = 0; k < inner; ++k)
        left[i * inner + k] =
            load(a.type, a_data, settings.transposes_a ? k + i * a.leading : i + k * a.leading);
    for (std::uint64_t j = 0; j < width; ++j)
      for (std::uint64_t k = 0; k < inner; ++k) right[j * inner + k] = load(b.type, b_data, k + j * b.leading);
    for (std::uint64_t j = 0; j < width; ++j)
      for (std::uint64_t i = 0; i < height; ++i) {
        double sum = 0;
        for (std::uint64_t k = 0; k < inner; ++k) sum += left[i * inner + k] * right[j * inner + k];
        sum *= static_cast<double>(alpha);
        if (beta != 0) sum += static_cast<double>(beta) * load(c.type, c_data, i + j * c.leading);
        if (settings.epilogue == 4) sum += load(datatype_of(settings.bias_type), settings.bias, i);
        store(c.type, sum, d_data, i + j * c.leading);
      }
  }
};

bool knows(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

const family& cuda() {
  static const family numbers{3, 7, 8, 26, 0, 1, 68, {1, 5, 6, 7, 8}};
  return numbers;
}
const family& hip() {
  static const family numbers{0, 2, 3, 4, 111, 112, 2, {1}};
  return numbers;
}

int create(void** handle) { return *handle = new int(0), success; }
int destroy(void* handle) { return delete static_cast<int*>(handle), success; }
int desc_create(const family& numbers, void** desc, int compute) {
  if (compute != numbers.compute) return refused;
  auto* handle = new description;
  handle->operation = numbers.no_transpose;
  return *desc = handle, success;
}
int desc_destroy(void* desc) { return delete static_cast<description*>(desc), success; }
int desc_set(const family& numbers, void* desc, int attribute, const void* value, std::size_t bytes) {
  auto& to = *static_cast<description*>(desc);
  void* fields[] = {&to.operation, &to.epilogue, &to.bias, &to.bias_type};
  const int attributes[] = {numbers.transpose_a, numbers.epilogue, numbers.bias, numbers.bias_type};
  const auto* match = std::find(std::begin(attributes), std::end(attributes), attribute);
  if (match == std::end(attributes)) return refused;
  std::memcpy(fields[match - attributes], value, bytes);
  to.transposes_a = to.operation == numbers.transpose;
  return to.transposes_a || to.operation == numbers.no_transpose ? success : refused;
}
int layout_create(void** handle, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t leading) {
  if (leading < static_cast<std::int64_t>(rows)) return refused;
  return *handle = new layout{datatype_of(type), rows, cols, static_cast<std::uint64_t>(leading)}, success;
}
int layout_destroy(void* handle) { return delete static_cast<layout*>(handle), success; }
int preference_create(void** handle) { return *handle = new int(0), success; }
int preference_destroy(void* handle) { return delete static_cast<int*>(handle), success; }
int preference_set(const family& numbers, int attribute) {
  return knows(numbers.preferences, attribute) ? success : refused;
}
int heuristic(void* results, int* count) {
  std::memcpy(results, &algorithm_id, sizeof algorithm_id);
  return *count = 1, success;
}
int matmul(void* desc, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
           const void* beta, const void* c, void* c_layout, void* d, const void* algorithm, void* stream) {
  if (std::memcmp(algorithm, &algorithm_id, sizeof algorithm_id) != 0) return refused;
  const auto& settings = *static_cast<description*>(desc);
  const auto &left = *static_cast<layout*>(a_layout), &right = *static_cast<layout*>(b_layout),
             &result = *static_cast<layout*>(c_layout);
  const std::uint64_t inner = settings.transposes_a ? left.rows : left.cols;
  if (inner != right.rows || result.cols != right.cols) return refused;
  auto* job = new product{settings,
                          left,
                          right,
                          result,
                          a,
                          b,
                          c,
                          d,
                          *static_cast<const float*>(alpha),
                          *static_cast<const float*>(beta)};
  standin_stream_submit(
      stream,
      [](void* argument) {
        auto* handle = static_cast<product*>(argument);
        handle->run();
        delete handle;
      },
      job);
  return success;
}

}  // namespace standin_blaslt

extern "C" {
STANDIN_API std::size_t cublasLtGetVersion() { return 130000; }
STANDIN_API const char* cublasLtGetStatusName(int) { return "CUBLAS_STATUS_OF_THE_STANDIN"; }
STANDIN_API int hipblasLtGetVersion(void*, int* version) { return *version = 1201, 0; }
STANDIN_API int hipblasLtMatrixTransformDescCreate(void**, int) { return 7; }
}
