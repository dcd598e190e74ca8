#include "operators/fused/device/product.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace isthmus::fused {
namespace {

// Size that NVIDIA recommends for Hopper. Split-K needs it, and small last chunks need split-K.
constexpr std::uint64_t workspace_size = std::uint64_t{32} << 20;

int to_lt_type(isthmus_datatype type) {
  switch (type) {
    case ISTHMUS_FLOAT16: return lt_type_float16;
    case ISTHMUS_BFLOAT16: return lt_type_bfloat16;
    case ISTHMUS_FLOAT32: return lt_type_float32;
    default: break;  // problem.cpp rejects all others
  }
  throw make_error(ISTHMUS_ERROR_INTERNAL, ISTHMUS_HERE, "fused: unexpected datatype");
}

// Alignment in bytes, limited to the largest value that cuBLASLt distinguishes.
unsigned alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return address == 0 ? 256 : static_cast<unsigned>(std::min<std::uintptr_t>(address & -address, 256));
}

}  // namespace

// The libraries are column-major, so they compute the transposed product C^T[n x rows] = B^T[n x k] A^T[k x
// rows]. In memory, a row-major matrix is identical to its column-major transpose.
struct device_product::operation {
  explicit operation(const blaslt& library) : library(library) {}
  ~operation() {
    for (void* layout : {b_layout, a_layout, c_layout})
      if (layout != nullptr) library.layout_destroy(layout);
    if (desc != nullptr) library.desc_destroy(desc);
  }
  operation(const operation&) = delete;
  operation& operator=(const operation&) = delete;

  const blaslt& library;
  void* desc = nullptr;
  void* b_layout = nullptr;
  void* a_layout = nullptr;
  void* c_layout = nullptr;
  lt_heuristic algorithm{};
};

device_product::device_product(const fused_problem& problem, device_driver& driver, int device,
                               const blaslt& library)
    : m_problem(problem),
      m_driver(driver),
      m_device(device),
      m_library(library),
      m_inner(std::max<std::uint64_t>(problem.description.k, 1)),
      m_ldb(std::max<std::uint64_t>(problem.description.ldb, 1)),
      m_workspace(driver, device, workspace_size) {
  if (problem.description.k == 0) {
    const std::uint64_t bytes =
        std::max<std::uint64_t>({problem.description.m, problem.description.n, 1}) * problem.input_bytes();
    m_zeros = owned_memory(driver, device, bytes);
    const owned_stream stream(driver, device);
    driver.fill(device, m_zeros, 0, bytes, stream);
    driver.synchronize(device, stream);
  }
  m_driver.run_on_device(device, [&] { check(library.create(&m_handle), ISTHMUS_HERE, "Create"); });
}

device_product::~device_product() {
  m_operations.clear();
  m_driver.run_on_device(m_device, [&] { m_library.destroy(m_handle); });
}

void device_product::check(int status, const char* location, const char* call) const {
  if (status == lt_success) return;
  throw make_error(ISTHMUS_ERROR_BACKEND, location,
                   fmt::format("{}{} failed: {}", m_library.traits.prefix, call, m_library.status_text(status)),
                   fmt::format("check for faults of earlier kernels; this {} may also not support the shape",
                               m_library.traits.name),
                   status);
}

std::unique_ptr<device_product::operation> device_product::prepare(const key& operation_key) {
  const auto& [rows, lda, has_bias, align_a, align_b, align_c, align_d] = operation_key;
  const auto& description = m_problem.description;
  const int input = to_lt_type(description.input), output = to_lt_type(description.output);
  const bool is_row_major = description.b_layout == ISTHMUS_ROW_MAJOR;
  auto new_operation = std::make_unique<operation>(m_library);
  const lt_traits& lt = m_library.traits;
  check(m_library.desc_create(&new_operation->desc, lt.compute_float32, lt_type_float32), ISTHMUS_HERE,
        "MatmulDescCreate");
  const int transposed = is_row_major ? lt.no_transpose : lt.transpose;
  check(m_library.desc_set(new_operation->desc, lt.transpose_a, &transposed, sizeof transposed), ISTHMUS_HERE,
        "MatmulDescSetAttribute");
  if (has_bias) {
    const int epilogue = lt_epilogue_bias;
    check(m_library.desc_set(new_operation->desc, lt.epilogue, &epilogue, sizeof epilogue), ISTHMUS_HERE,
          "MatmulDescSetAttribute");
    check(m_library.desc_set(new_operation->desc, lt.bias_type, &output, sizeof output), ISTHMUS_HERE,
          "MatmulDescSetAttribute");
  }
  const auto layout = [&](void** to, int type, std::uint64_t height, std::uint64_t width,
                          std::uint64_t leading) {
    check(m_library.layout_create(to, type, height, width, static_cast<std::int64_t>(leading)), ISTHMUS_HERE,
          "MatrixLayoutCreate");
  };
  const std::uint64_t ldb = description.k > 0 ? m_ldb : (is_row_major ? description.n : 1);
  layout(&new_operation->b_layout, input, is_row_major ? description.n : m_inner,
         is_row_major ? m_inner : description.n, ldb);
  layout(&new_operation->a_layout, input, m_inner, rows, description.k > 0 ? lda : 1);
  layout(&new_operation->c_layout, output, description.n, rows, description.ldc);
  choose_algorithm(*new_operation, operation_key);
  return new_operation;
}

void device_product::choose_algorithm(operation& new_operation, const key& operation_key) {
  const auto& [rows, lda, has_bias, align_a, align_b, align_c, align_d] = operation_key;
  void* preference = nullptr;
  check(m_library.preference_create(&preference), ISTHMUS_HERE, "MatmulPreferenceCreate");
  const std::unique_ptr<void, int (*)(void*)> guard(preference, m_library.preference_destroy);
  const auto set = [&](int attribute, const auto& value) {
    check(m_library.preference_set(preference, attribute, &value, sizeof value), ISTHMUS_HERE,
          "MatmulPreferenceSetAttribute");
  };
  set(m_library.traits.workspace, m_workspace.bytes());
  if (const auto* alignments = m_library.traits.alignments) {
    const unsigned values[] = {align_b, align_a, align_c, align_d};  // cuBLASLt's A is our B
    for (std::size_t event = 0; event < alignments->size(); ++event)
      set((*alignments)[event], static_cast<std::uint32_t>(values[event]));
  }
  int algorithm_count = 0;
  check(m_library.heuristic(m_handle, new_operation.desc, new_operation.b_layout, new_operation.a_layout,
                            new_operation.c_layout, new_operation.c_layout, preference, 1,
                            &new_operation.algorithm, &algorithm_count),
        ISTHMUS_HERE, "MatmulAlgoGetHeuristic");
  if (algorithm_count == 0)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("{} has no algorithm for {} x {} x {}", m_library.traits.name, rows,
                                 m_problem.description.n, m_inner),
                     "use leading dimensions that are multiples of 16 bytes");
}

std::string device_product::library_text() const {
  return fmt::format("{} {}", m_library.path, m_library.version(m_handle));
}

device_product::operation& device_product::find(const key& operation_key) {
  auto& new_operation = m_operations[operation_key];
  if (new_operation == nullptr) new_operation = prepare(operation_key);
  return *new_operation;
}

void device_product::enqueue(const void* a, std::uint64_t lda, std::uint64_t rows, const void* b, const void* c,
                             void* d, const product_scalars& scalars, native_stream stream) {
  if (rows == 0 || m_problem.description.n == 0) return;
  if (m_zeros != nullptr) a = b = m_zeros.get();
  m_driver.run_on_device(m_device, [&] {
    operation& new_operation = find({rows, lda, scalars.bias != nullptr, alignment_of(a), alignment_of(b),
                                     alignment_of(c), alignment_of(d)});
    if (scalars.bias != nullptr)
      check(m_library.desc_set(new_operation.desc, m_library.traits.bias_pointer,
                               static_cast<const void*>(&scalars.bias), sizeof scalars.bias),
            ISTHMUS_HERE, "MatmulDescSetAttribute");
    check(m_library.matmul(m_handle, new_operation.desc, &scalars.alpha, b, new_operation.b_layout, a,
                           new_operation.a_layout, &scalars.beta, c, new_operation.c_layout, d,
                           new_operation.c_layout, &new_operation.algorithm, m_workspace.get(),
                           m_workspace.bytes(), stream),
          ISTHMUS_HERE, "Matmul");
  });
}

}  // namespace isthmus::fused
