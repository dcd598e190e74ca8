// Products with cuBLASLt or hipBLASLt as native commands of a queue: float32, row-major.
#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "operators/fused/device/blaslt.hpp"
#include "rank_team.hpp"

namespace sycl_device_test {

// c[rows x columns] = a[rows x inner] * b[inner x columns], without a workspace.
class blas_product {
 public:
  // Throws std::runtime_error if the library is not available.
  blas_product(isthmus_platform platform, std::uint64_t inner, std::uint64_t columns)
      : m_platform(platform), m_inner(inner), m_columns(columns), m_library(find(platform)) {}
  ~blas_product() {
    if (m_handle != nullptr) m_library.destroy(m_handle);
  }
  blas_product(const blas_product&) = delete;
  blas_product& operator=(const blas_product&) = delete;

  sycl::event enqueue(sycl::queue& queue, const float* a, std::uint64_t rows, const float* b, float* c,
                      const isthmus::dependencies& wait_events) {
    isthmus::detail::order_after(queue, wait_events);
    return queue.submit([&](sycl::handler& handler) {
      handler.depends_on(wait_events);
      isthmus::detail::native_enqueue(handler, [=, this](auto& interop) {
        isthmus::detail::visit_native(m_platform, [&](auto native) {
          const int status = run(a, rows, b, c, native.stream(interop));
          EXPECT_EQ(status, isthmus::fused::lt_success) << m_library.status_text(status);
        });
      });
    });
  }

 private:
  static const isthmus::fused::blaslt& find(isthmus_platform platform) {
    std::string reason;
    const auto* library = isthmus::fused::blaslt::get(platform, nullptr, reason);
    if (library == nullptr) throw std::runtime_error(reason);
    return *library;
  }

  // An object of the library, freed by its destroy function.
  using owned = std::unique_ptr<void, int (*)(void*)>;
  owned layout(std::uint64_t height, std::uint64_t width) const {  // column-major
    void* object = nullptr;
    m_library.layout_create(&object, isthmus::fused::lt_type_float32, height, width,
                            static_cast<std::int64_t>(height));
    return {object, m_library.layout_destroy};
  }
  // The library is column-major, so it computes the transposed product.
  int run(const float* a, std::uint64_t rows, const float* b, float* c, void* stream) {
    const std::lock_guard lock(m_mutex);                   // the runtime selects the thread
    if (m_handle == nullptr) m_library.create(&m_handle);  // in the context of the command
    void* object = nullptr;
    m_library.desc_create(&object, m_library.traits.compute_float32, isthmus::fused::lt_type_float32);
    const owned desc(object, m_library.desc_destroy);
    const owned b_layout = layout(m_columns, m_inner), a_layout = layout(m_inner, rows),
                c_layout = layout(m_columns, rows);
    m_library.preference_create(&object);
    const owned preference(object, m_library.preference_destroy);
    isthmus::fused::lt_heuristic algorithm{};
    int count = 0;
    const int status = m_library.heuristic(m_handle, desc.get(), b_layout.get(), a_layout.get(), c_layout.get(),
                                           c_layout.get(), preference.get(), 1, &algorithm, &count);
    if (status != isthmus::fused::lt_success) return status;
    const float alpha = 1, beta = 0;
    return m_library.matmul(m_handle, desc.get(), &alpha, b, b_layout.get(), a, a_layout.get(), &beta, c,
                            c_layout.get(), c, c_layout.get(), &algorithm, nullptr, 0, stream);
  }

  isthmus_platform m_platform;
  std::uint64_t m_inner, m_columns;
  const isthmus::fused::blaslt& m_library;
  std::mutex m_mutex;  // guards m_handle
  void* m_handle = nullptr;
};

}  // namespace sycl_device_test
