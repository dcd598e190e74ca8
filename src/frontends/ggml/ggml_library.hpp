// Function table of the ggml library in this process, and the layout of its tensors, looked up and checked once.
#pragma once

#include <isthmus/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace isthmus::ggml {

// ---- C interface ----
//
// The part of ggml's C interface that this library uses: opaque types and function types. No layout of a ggml
// structure is declared here. tensor_layout finds the two tensor fields without accessors at run time, so
// another ggml release either works or is not used.

struct ggml_backend;
struct ggml_context;
struct ggml_device;
struct ggml_event;
struct ggml_graph;
struct ggml_registry;
struct ggml_tensor;

struct context_parameters {
  std::size_t pool_bytes;
  void* pool;     // NULL if ggml allocates it
  bool no_alloc;  // if true, tensors get no data
};

using proc_address_function = void*(ggml_registry*, const char* name);

// The three functions that the meta backend looks up in the registry of its first device. comm_init gets a
// temporary array and returns NULL if unsupported. comm_allreduce gets one tensor per backend and returns false
// if it did nothing.
using comm_init = void*(ggml_backend** backends, std::size_t n);
using comm_free = void(void* comm);
using comm_allreduce = bool(void* comm, ggml_tensor** tensors);

// ---- lookup of functions ----

// Returns the definition of `name` that the library containing `caller` would have called without this library,
// or else the next definition in the process. Returns NULL if there is none. `caller` is an address inside the
// calling code; `own_definition` is this library's definition.
void* next_definition(const char* name, const void* caller, const void* own_definition);

// Looks up names in a loaded library and its dependencies. Never loads or unloads a library: it
// belongs to the caller.
class loaded_library {
 public:
  // Finds the library by soname, or by an address inside it. The object is empty if the library is not loaded.
  explicit loaded_library(const char* soname);
  static loaded_library containing(const void* address);

  explicit operator bool() const { return m_handle != nullptr; }
  void* find(const char* name) const;

  template <typename Function>
  bool find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(find(name));
    return function != nullptr;
  }

 private:
  void* m_handle;
};

// ---- the library ----

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
