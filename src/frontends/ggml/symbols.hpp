// Finds the function that a definition in this library interposes.
#pragma once

namespace isthmus::ggml {

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

}  // namespace isthmus::ggml
