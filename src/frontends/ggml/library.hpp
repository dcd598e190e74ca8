// The ggml of this process: the functions of it that are used, checked once.
#pragma once

#include "frontends/ggml/abi.hpp"
#include "frontends/ggml/symbols.hpp"
#include "frontends/ggml/tensor_layout.hpp"

namespace isthmus::ggml {

class library {
 public:
  // The ggml whose registry look-up is `procedures`. NULL, and a warning, where it can't be understood, or
  // where the process uses another copy of ggml already. Thread-safe; the object stays.
  static const library* of(find_procedure* procedures) noexcept;
  // The one that `of` found; NULL before.
  static const library* known() noexcept;

  find_procedure* procedure;  // ggml_backend_reg_get_proc_address
  device* (*get_device)(backend*);
  void (*synchronize)(backend*);
  registry* (*registry_of)(device*);
  const char* (*registry_name)(registry*);
  const char* (*device_name)(device*);
  int (*device_type)(device*);
  static constexpr int cpu_device = 0;  // "CPU device using system memory"
  event* (*make_event)(device*);
  void (*free_event)(event*);
  void (*record_event)(event*, backend*);
  void (*synchronize_event)(event*);
  std::int64_t (*count_elements)(const tensor*);
  bool (*is_contiguous)(const tensor*);  // its elements fill its memory, in whatever order
  void* (*data)(const tensor*);

  const tensor_layout& layout() const { return m_layout; }

 private:
  library(find_procedure* procedures, const loaded_library& file);
  std::string find_functions(const loaded_library& file);

  tensor_layout m_layout;
};

}  // namespace isthmus::ggml
