#include "operators/fused/host/blas.hpp"

#include <algorithm>
#include <memory>
#include <mutex>

namespace isthmus::fused {
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

}  // namespace isthmus::fused
