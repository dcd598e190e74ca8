// Function table of the ggml library in this process, and the layout of its tensors, looked up and checked once.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "frontends/ggml/abi.hpp"
#include "frontends/ggml/symbols.hpp"

namespace isthmus::ggml {

// Reads the two fields of a ggml_tensor that have no accessor: type and flags.
class tensor_layout {
 public:
  // Creates a few tensors with ggml's functions and checks which words change. If the result is ambiguous, sets
  // reason(), and the object must not be used.
  explicit tensor_layout(const loaded_library& ggml);
  const std::string& reason() const { return m_reason; }

  // Returns float32, float16 or bfloat16, or nothing for other types.
  std::optional<isthmus_datatype> datatype(const ggml_tensor* tensor) const {
    const std::int32_t type = word(tensor, 0);
    if (type == m_types[0]) return ISTHMUS_FLOAT32;
    if (type == m_types[1]) return ISTHMUS_FLOAT16;
    if (type == m_types[2]) return ISTHMUS_BFLOAT16;
    return std::nullopt;
  }
  // Returns whether the tensor holds a shard. Otherwise, it counts as zeros, regardless of its contents.
  bool is_computed(const ggml_tensor* tensor) const { return (word(tensor, m_flags) & m_compute_flag) != 0; }

 private:
  void find_types(const loaded_library& ggml, ggml_context* scratch);
  void find_flags(const loaded_library& ggml, ggml_context* scratch);
  static std::int32_t word(const ggml_tensor* tensor, std::size_t offset) {
    std::int32_t value;
    std::memcpy(&value, reinterpret_cast<const char*>(tensor) + offset, sizeof value);
    return value;
  }

  std::int32_t m_types[3]{};
  std::size_t m_flags = 0;
  std::int32_t m_compute_flag = 0;
  std::string m_reason;
};

// The functions of the library.
class ggml_library {
 public:
  // Returns the ggml library whose registry lookup function is `look_up`. Returns NULL and prints a warning if
  // that library is not supported or if the process already uses another copy.
  // Thread safety: any thread may call this. Lifetime: the object is never freed.
  static const ggml_library* find(proc_address_function* look_up) noexcept;
  // Returns the object that find() created, or NULL.
  static const ggml_library* current() noexcept;

  proc_address_function* get_proc_address;  // ggml_backend_reg_get_proc_address
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
  ggml_library(proc_address_function* look_up, const loaded_library& file);
  std::string find_functions(const loaded_library& file);

  tensor_layout m_layout;
};

}  // namespace isthmus::ggml
