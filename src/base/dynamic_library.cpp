#include "base/dynamic_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <sstream>

#include "base/trust.hpp"

namespace isthmus {
namespace {

namespace fs = std::filesystem;

// Adds <prefix>/lib*/python3*/site-packages of a Python installation or virtual environment.
void add_site_packages(const fs::path& prefix, std::vector<fs::path>& folders) {
  std::error_code ignored;
  for (const char* lib : {"lib", "lib64"}) {
    for (const auto& entry : fs::directory_iterator(prefix / lib, ignored)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      const fs::path packages = entry.path() / "site-packages";
      if (fs::is_directory(packages, ignored)) folders.push_back(packages);
    }
  }
}

// Adds the site-packages of the environment that the first `python3` on PATH belongs to.
void add_python_on_path(std::vector<fs::path>& folders) {
  const char* path = environment_variable("PATH");
  std::istringstream path_folders(path != nullptr ? path : "");
  std::error_code ignored;
  for (std::string folder_name; std::getline(path_folders, folder_name, ':');) {
    if (!folder_name.starts_with('/') || !fs::exists(fs::path(folder_name) / "python3", ignored)) continue;
    add_site_packages(fs::path(folder_name).parent_path(), folders);
    return;
  }
}

std::vector<fs::path> site_packages_folders(const char* configured_folder) {
  std::vector<fs::path> folders;
  if (configured_folder != nullptr) folders.emplace_back(configured_folder);
  if (const char* environment = environment_variable("VIRTUAL_ENV");
      environment != nullptr && *environment == '/')
    add_site_packages(environment, folders);
  add_python_on_path(folders);
  return folders;
}

// Returns the path of the real library if the loaded library is an interposer; "" otherwise.
std::string real_path(void* handle, const char* real_path_symbol) {
  void* const query_path = real_path_symbol == nullptr ? nullptr : dlsym(handle, real_path_symbol);
  const char* const path = query_path == nullptr ? nullptr : reinterpret_cast<const char* (*)()>(query_path)();
  return path == nullptr ? "" : path;
}

}  // namespace

std::vector<std::string> candidate_paths(const library_search_request& request) {
  if (request.option != nullptr) return {request.option};
  if (const char* path = environment_variable(request.variable); path != nullptr && *path != '\0')
    return {path};
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const fs::path& packages : site_packages_folders(request.site_packages)) {
    for (const std::string& folder : request.wheel_folders) {
      for (const std::string& name : request.names) {
        const fs::path path = packages / folder / name;
        if (fs::exists(path, ignored)) paths.push_back(path.string());
      }
    }
  }
  for (const std::string& name : request.names) paths.push_back(name);
  for (const std::string& folder : request.system_folders) {
    for (const std::string& name : request.names) {
      const fs::path path = fs::path(folder) / name;
      if (fs::exists(path, ignored)) paths.push_back(path.string());
    }
  }
  return paths;
}

dynamic_library dynamic_library::open(const library_search_request& request, std::string& reason) {
  dynamic_library library;
  reason = "tried";
  for (std::string path : candidate_paths(request)) {
    // A bare file name is resolved by the dynamic linker, which searches only trusted folders.
    if (path.find('/') != std::string::npos) {
      if (const std::string refusal = check_code_path(path); !refusal.empty()) {
        reason.append(" ").append(path).append(" (").append(refusal).append(")");
        continue;
      }
    }
    constexpr int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    library.m_handle = dlopen(path.c_str(), flags);
    if (library.m_handle != nullptr)
      if (const std::string target = real_path(library.m_handle, request.real_path_symbol); !target.empty())
        library.m_handle = dlopen(target.c_str(), flags);
    if (library.m_handle != nullptr) {
      link_map* map = nullptr;
      const bool has_link_map =
          dlinfo(library.m_handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && *map->l_name != '\0';
      library.m_path = has_link_map ? map->l_name : path;
      reason.clear();
      return library;
    }
    const char* load_error = dlerror();
    reason += " " + path + " (" + (load_error != nullptr ? load_error : "unknown") + ")";
  }
  return library;
}

dynamic_library dynamic_library::find_loaded(const char* name) {
  dynamic_library library;
  library.m_handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  library.m_path = name;
  return library;
}

void* dynamic_library::symbol(const std::string& name) const { return dlsym(m_handle, name.c_str()); }

}  // namespace isthmus
