// A shared library that is found and loaded at run time, so that nothing links to a vendor's library. The
// core and the plug-ins each compile it; the dynamic linker sees to it that a library is loaded once.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace isthmus {

// Where to look for a library, and what the user said about it.
struct library_search_request {
  const char* option = nullptr;             // path from the configuration: when given, nothing else is tried
  const char* variable = "";                // environment variable with a path: likewise
  const char* site_packages = nullptr;      // a Python site-packages folder to look in first; may be null
  std::vector<std::string> names;           // file names, newest first
  std::vector<std::string> wheel_folders;   // below site-packages, where PyPI's wheels put it
  std::vector<std::string> system_folders;  // beside what the dynamic linker searches
  // A function `const char* (void)` by which a library that stands before this one, under its name, tells the
  // path of the real one; nullptr: there is no such thing.
  const char* real_path_symbol = nullptr;
};

// Paths to try, in order. What a caller asked for by name is never replaced by something else.
std::vector<std::string> candidate_paths(const library_search_request& request);

class dynamic_library {
 public:
  dynamic_library() = default;

  // Loads the first candidate that can be loaded, with local symbols. A library that the process already
  // has (PyTorch's NCCL, say) is the same object for the dynamic linker and is shared. Stays loaded for the
  // life of the process: vendor libraries own threads. On failure `reason` says what was tried.
  static dynamic_library open(const library_search_request& request, std::string& reason);

  explicit operator bool() const { return m_handle != nullptr; }
  const std::string& path() const { return m_path; }
  void* symbol(const std::string& name) const;

 private:
  void* m_handle = nullptr;
  std::string m_path;
};

// Looks functions up behind one prefix ("cuda", "hip", "nccl") and remembers the first that is missing.
class symbol_loader {
 public:
  symbol_loader(const dynamic_library& library, std::string prefix)
      : m_library(library), m_prefix(std::move(prefix)) {}

  // A function that the caller can't do without.
  template <typename Function>
  void load_required(Function& function, const char* name) {
    load_optional(function, name);
    if (function == nullptr && m_first_missing.empty()) m_first_missing = m_prefix + name;
  }

  // A function that older versions lack: null then.
  template <typename Function>
  void load_optional(Function& function, const char* name) {
    function = reinterpret_cast<Function>(m_library.symbol(m_prefix + name));
  }

  // The first needed name that was not found, or "".
  const std::string& first_missing() const { return m_first_missing; }

 private:
  const dynamic_library& m_library;
  std::string m_prefix, m_first_missing;
};

}  // namespace isthmus
