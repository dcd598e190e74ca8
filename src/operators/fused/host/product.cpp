#include "operators/fused/host/product.hpp"

#include <isthmus/types.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/formats.inc.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace isthmus::fused {

// ---- the BLAS library ----

namespace {

constexpr int row_major = 101, no_transpose = 111, transpose = 112;  // constants of CBLAS

template <typename Function>
Function first_symbol(const dynamic_library& library, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* address = library.symbol(name)) return reinterpret_cast<Function>(address);
  return nullptr;
}

int narrow_to_int(std::uint64_t value) { return static_cast<int>(value); }  // extents are at most 2^31 - 1

}  // namespace

blas* blas::get(const char* option, std::string& reason) {
  static std::mutex mutex;
  static std::unique_ptr<blas> instance;
  const std::lock_guard lock(mutex);
  if (instance == nullptr) {
    auto library = std::make_unique<blas>();
    reason = library->load(option);
    if (reason.empty()) instance = std::move(library);
  }
  return instance.get();
}

std::string blas::load(const char* option) {
  library_search_request search;
  search.option = option;
  search.variable = "ISTHMUS_BLAS_LIBRARY";
  search.names = {"libscipy_openblas.so", "libopenblas.so.0", "libmkl_rt.so.3", "libmkl_rt.so.2"};
  search.wheel_folders = {"scipy_openblas32/lib", "../.."};
  std::string reason;
  const dynamic_library library = dynamic_library::open(search, reason);
  if (!library) return "no BLAS library could be loaded: " + reason;
  m_path = library.path();
  m_sgemm = first_symbol<sgemm_function>(library, {"scipy_cblas_sgemm", "cblas_sgemm"});
  if (m_sgemm == nullptr) return m_path + " lacks cblas_sgemm with 32-bit integers";
  m_set_threads = first_symbol<void (*)(int)>(
      library, {"scipy_openblas_set_num_threads", "openblas_set_num_threads", "MKL_Set_Num_Threads"});
  return "";
}

void blas::sgemm(std::uint64_t rows, std::uint64_t n, std::uint64_t k, float alpha, const float* a,
                 std::uint64_t lda, bool is_b_transposed, const float* b, std::uint64_t ldb, float beta,
                 float* c, std::uint64_t ldc) const {
  if (rows == 0 || n == 0) return;
  const auto leading = [](std::uint64_t value) { return narrow_to_int(std::max<std::uint64_t>(value, 1)); };
  m_sgemm(row_major, no_transpose, is_b_transposed ? transpose : no_transpose, narrow_to_int(rows),
          narrow_to_int(n), narrow_to_int(k), alpha, a, leading(lda), b, leading(ldb), beta, c, leading(ldc));
}

void blas::set_threads(int threads) const {
  if (m_set_threads != nullptr) m_set_threads(threads);
}

// ---- conversions ----

namespace {

using formats::bfloat16_format;
using half_format = formats::datatype_format<ISTHMUS_FLOAT16>::type;

template <typename Format>
void widen_all(const std::uint16_t* in, float* out, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) out[i] = Format::load(in[i]);
}

template <typename Format>
void narrow_all(const float* in, std::uint16_t* out, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) out[i] = Format::store(in[i]);
}

#if defined(__x86_64__)
bool has_half_instructions() noexcept {
  static const bool has_instructions = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has_instructions;
}

__attribute__((target("avx,f16c"))) void widen_half(const std::uint16_t* in, float* out,
                                                    std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  widen_all<half_format>(in + i, out + i, count - i);
}

__attribute__((target("avx,f16c"))) void narrow_half(const float* in, std::uint16_t* out,
                                                     std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
  narrow_all<half_format>(in + i, out + i, count - i);
}
#else
bool has_half_instructions() noexcept { return false; }
void widen_half(const std::uint16_t* in, float* out, std::size_t count) noexcept {
  widen_all<half_format>(in, out, count);
}
void narrow_half(const float* in, std::uint16_t* out, std::size_t count) noexcept {
  narrow_all<half_format>(in, out, count);
}
#endif

}  // namespace

void widen(isthmus_datatype type, const void* in, float* out, std::size_t count) noexcept {
  const auto* small = static_cast<const std::uint16_t*>(in);
  if (type == ISTHMUS_FLOAT32)
    std::memcpy(out, in, count * sizeof *out);
  else if (type == ISTHMUS_BFLOAT16)
    widen_all<bfloat16_format>(small, out, count);
  else if (has_half_instructions())
    widen_half(small, out, count);
  else
    widen_all<half_format>(small, out, count);
}

void narrow(isthmus_datatype type, const float* in, void* out, std::size_t count) noexcept {
  auto* small = static_cast<std::uint16_t*>(out);
  if (type == ISTHMUS_FLOAT32)
    std::memcpy(out, in, count * sizeof *in);
  else if (type == ISTHMUS_BFLOAT16)
    narrow_all<bfloat16_format>(in, small, count);
  else if (has_half_instructions())
    narrow_half(in, small, count);
  else
    narrow_all<half_format>(in, small, count);
}

// ---- products ----

namespace {

// A panel of A stays in the L2 cache between its conversion and its product, but is tall enough for BLAS to
// reuse the packed part of B.
constexpr std::uint64_t panel_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t min_rows = 64, max_rows = 1024;

std::uint64_t panel_rows(std::uint64_t k) {
  const std::uint64_t row_bytes = std::max<std::uint64_t>(k, 1) * sizeof(float);
  return std::clamp<std::uint64_t>(panel_bytes / row_bytes / 16 * 16, min_rows, max_rows);
}

}  // namespace

host_product::host_product(const fused_problem& problem, const blas& library)
    : m_problem(problem), m_blas(library), m_panel_rows(panel_rows(problem.description.k)) {
  const auto& description = problem.description;
  if (description.input != ISTHMUS_FLOAT32) {
    m_b_panel.resize(description.k * description.n);
    m_a_panel.resize(std::min(m_panel_rows, description.m) * description.k);
  }
  m_row.resize(description.n);
  if (description.output != ISTHMUS_FLOAT32)
    m_c_panel.resize(std::min(m_panel_rows, description.m) * description.n);
}

std::uint64_t host_product::workspace_bytes() const {
  return (m_b_panel.size() + m_a_panel.size() + m_c_panel.size() + m_row.size()) * sizeof(float);
}

void host_product::set_b(const void* b) {
  const auto& description = m_problem.description;
  if (description.input == ISTHMUS_FLOAT32) {
    m_b = static_cast<const float*>(b);
    m_ldb = description.ldb;
    return;
  }
  const bool is_row_major = description.b_layout == ISTHMUS_ROW_MAJOR;
  const std::uint64_t lines = is_row_major ? description.k : description.n,
                      width = is_row_major ? description.n : description.k;
  for (std::uint64_t line = 0; line < lines; ++line)
    widen(description.input,
          static_cast<const std::byte*>(b) + line * description.ldb * m_problem.input_bytes(),
          m_b_panel.data() + line * width, width);
  m_b = m_b_panel.data();
  m_ldb = width;
}

void host_product::run(const void* a, std::uint64_t lda, std::uint64_t rows, const target& to,
                       const product_scalars& scalars) {
  const auto& description = m_problem.description;
  const auto* from = static_cast<const std::byte*>(a);
  const bool is_float32 = description.input == ISTHMUS_FLOAT32 && description.output == ISTHMUS_FLOAT32;
  const std::uint64_t step = is_float32 ? std::max<std::uint64_t>(rows, 1) : m_panel_rows;
  for (std::uint64_t begin = 0; begin < rows; begin += step) {
    const std::uint64_t count = std::min(step, rows - begin);
    const std::byte* source = from + begin * lda * m_problem.input_bytes();
    const target panel{static_cast<std::byte*>(to.c) + begin * to.ldc * m_problem.output_bytes(), to.ldc};
    if (description.input == ISTHMUS_FLOAT32) {
      run_panel(reinterpret_cast<const float*>(source), lda, count, panel, scalars);
      continue;
    }
    for (std::uint64_t row = 0; row < count; ++row)
      widen(description.input, source + row * lda * m_problem.input_bytes(),
            m_a_panel.data() + row * description.k, description.k);
    run_panel(m_a_panel.data(), description.k, count, panel, scalars);
  }
}

void host_product::run_panel(const float* a, std::uint64_t lda, std::uint64_t rows, const target& to,
                             const product_scalars& scalars) {
  const auto& description = m_problem.description;
  const bool is_transposed = description.b_layout == ISTHMUS_COLUMN_MAJOR;
  const bool is_direct = description.output == ISTHMUS_FLOAT32;
  m_blas.sgemm(rows, description.n, description.k, scalars.alpha, a, lda, is_transposed, m_b, m_ldb,
               is_direct ? scalars.beta : 0.0f, is_direct ? static_cast<float*>(to.c) : m_c_panel.data(),
               is_direct ? to.ldc : description.n);
  if (!is_direct || scalars.bias != nullptr) finish_rows(to, rows, scalars);
}

// BLAS supports neither a bias nor 16-bit C. Adds both in float32 and rounds once.
void host_product::finish_rows(const target& to, std::uint64_t rows, const product_scalars& scalars) {
  const auto& description = m_problem.description;
  const bool is_direct = description.output == ISTHMUS_FLOAT32;
  std::vector<float> bias(scalars.bias != nullptr ? description.n : 0);
  if (scalars.bias != nullptr) widen(description.output, scalars.bias, bias.data(), description.n);
  for (std::uint64_t row = 0; row < rows; ++row) {
    auto* c_row = static_cast<std::byte*>(to.c) + row * to.ldc * m_problem.output_bytes();
    float* line = is_direct ? reinterpret_cast<float*>(c_row) : m_c_panel.data() + row * description.n;
    if (!is_direct && scalars.beta != 0) {
      widen(description.output, c_row, m_row.data(), description.n);
      for (std::uint64_t i = 0; i < description.n; ++i) line[i] += scalars.beta * m_row[i];
    }
    for (std::uint64_t i = 0; i < bias.size(); ++i) line[i] += bias[i];
    if (!is_direct) narrow(description.output, line, c_row, description.n);
  }
}

}  // namespace isthmus::fused
