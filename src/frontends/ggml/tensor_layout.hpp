// Reads the two fields of a ggml_tensor that have no accessor: type and flags.
#pragma once

#include <isthmus/types.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "frontends/ggml/abi.hpp"
#include "frontends/ggml/symbols.hpp"

namespace isthmus::ggml {

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

}  // namespace isthmus::ggml
