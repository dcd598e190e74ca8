// Shared libraries that are found and loaded at run time, so that Isthmus does not link to vendor libraries.
// The core and each plug-in compile this code; the dynamic linker ensures that a library is loaded only once.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isthmus {

// The search locations for a library, including the path that the user configured.
struct library_search_request {
  const char* option = nullptr;             // path from the configuration; if set, nothing else is tried
  const char* variable = "";                // environment variable with a path; if set, nothing else is tried
  const char* site_packages = nullptr;      // Python site-packages folder to search first; may be null
  std::vector<std::string> names;           // file names, newest first
  std::vector<std::string> wheel_folders;   // relative to site-packages, as installed by PyPI wheels
  std::vector<std::string> system_folders;  // searched in addition to the dynamic linker's folders
  // Name of a function `const char* (void)` that an interposer library exports under this library's name. The
  // function returns the path of the real library. nullptr if no interposer exists.
  const char* real_path_symbol = nullptr;
};

// Paths to try, in order. If the user configured a path, no other path is tried.
std::vector<std::string> candidate_paths(const library_search_request& request);

class dynamic_library {
 public:
  dynamic_library() = default;

  // Loads the first candidate that can be loaded, with local symbols. A library that the process has already
  // loaded (for example PyTorch's NCCL) is shared. On failure, `reason` lists the attempts.
  //
  // Lifetime: the library stays loaded until the process exits, because vendor libraries own threads.
  static dynamic_library open(const library_search_request& request, std::string& reason);
  // Returns a library that the process has already loaded, by its file name or path; empty if there is none.
  static dynamic_library find_loaded(const char* name);

  explicit operator bool() const { return m_handle != nullptr; }
  const std::string& path() const { return m_path; }
  void* symbol(const std::string& name) const;

 private:
  void* m_handle = nullptr;
  std::string m_path;
};

// Looks up functions that share a prefix ("cuda", "hip", "nccl") and records the first missing function. The name
// "none" stands for a function that the library is not expected to have: tables with one column per library use it.
class symbol_loader {
 public:
  symbol_loader(const dynamic_library& library, std::string prefix)
      : m_library(library), m_prefix(std::move(prefix)) {}

  // Looks up a function that the caller requires.
  template <typename Function>
  void load_required(Function& function, const char* name) {
    load_optional(function, name);
    if (function == nullptr && m_first_missing.empty() && name != absent) m_first_missing = m_prefix + name;
  }

  // Looks up a function that older versions lack. Sets `function` to null if it is missing.
  template <typename Function>
  void load_optional(Function& function, const char* name) {
    function = name == absent ? nullptr : reinterpret_cast<Function>(m_library.symbol(m_prefix + name));
  }

  // Returns the name of the first required function that was not found, or "".
  const std::string& first_missing() const { return m_first_missing; }

 private:
  static constexpr std::string_view absent = "none";

  const dynamic_library& m_library;
  std::string m_prefix, m_first_missing;
};

}  // namespace isthmus
