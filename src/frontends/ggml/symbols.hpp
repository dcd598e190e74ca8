// Finding the function that a definition of this library stands in front of.
#pragma once

namespace isthmus::ggml {

// The next definition of `name` after this library's own: the one that the library around `caller` would
// have reached without us, else the next one of the process. NULL where there is none.
// `caller` is an address inside the code that called; `own` is this library's definition.
void* next_definition(const char* name, const void* caller, const void* own_definition);

// Looks up names in one loaded library and what it depends on. Never loads anything; never unloads, either:
// the library is in use by whoever called us.
class loaded_library {
 public:
  // By its soname, or the one that holds an address. Empty where it is not loaded.
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
