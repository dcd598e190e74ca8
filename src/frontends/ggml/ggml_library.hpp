// Function table of the ggml library in this process, looked up and checked once.
#pragma once

#include "frontends/ggml/abi.hpp"
#include "frontends/ggml/symbols.hpp"
#include "frontends/ggml/tensor_layout.hpp"

namespace isthmus::ggml {

class ggml_library {
 public:
  // Returns the ggml library whose registry lookup function is `look_up`. Returns NULL and prints a warning if
  // that library is not supported or if the process already uses another copy.
  // Thread safety: any thread may call this. Lifetime: the object is never freed.
  static const ggml_library* find(find_procedure* look_up) noexcept;
  // Returns the object that find() created, or NULL.
  static const ggml_library* current() noexcept;

  find_procedure* procedure;  // ggml_backend_reg_get_proc_address
  ggml_device* (*get_device)(ggml_backend*);
  void (*synchronize)(ggml_backend*);
  ggml_registry* (*registry_of)(ggml_device*);
  const char* (*registry_name)(ggml_registry*);
  const char* (*device_name)(ggml_device*);
  int (*device_type)(ggml_device*);
  static constexpr int cpu_device = 0;  // "CPU device using system memory"
  ggml_event* (*make_event)(ggml_device*);
  void (*free_event)(ggml_event*);
  void (*record_event)(ggml_event*, ggml_backend*);
  void (*synchronize_event)(ggml_event*);
  std::int64_t (*count_elements)(const ggml_tensor*);
  bool (*is_contiguous)(const ggml_tensor*);  // elements fill the memory without gaps, in any order
  void* (*data)(const ggml_tensor*);

  const tensor_layout& layout() const { return m_layout; }

 private:
  ggml_library(find_procedure* look_up, const loaded_library& file);
  std::string find_functions(const loaded_library& file);

  tensor_layout m_layout;
};

}  // namespace isthmus::ggml
