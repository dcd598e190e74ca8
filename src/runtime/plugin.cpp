#include "runtime/plugin.hpp"

#include <dlfcn.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <sstream>
#include <string_view>

#include "runtime/builtin_backends.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

namespace isthmus {
namespace {

namespace fs = std::filesystem;

constexpr const char* rebuild_hint = "rebuild the plug-in against the isthmus/backend.h of this version";

error plugin_error(const std::string& path, const std::string& what, const char* hint) {
  return make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE, fmt::format("plug-in {}: {}", path, what), hint);
}

const isthmus_backend* open_plugin(const std::string& path) {
  std::error_code ignored;
  const bool searched = path.find('/') == std::string::npos;  // by dlopen, in its own folders
  if (!searched && !fs::exists(path, ignored))
    throw plugin_error(path, "the file does not exist", "correct the path in the config file");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw plugin_error(path, dlerror(), "it must be a shared library whose dependencies can be found");
  using entry_point = const isthmus_backend* (*)();
  const auto entry = reinterpret_cast<entry_point>(dlsym(library, ISTHMUS_BACKEND_SYMBOL));
  if (entry == nullptr) {
    dlclose(library);
    throw plugin_error(path, "it does not export " ISTHMUS_BACKEND_SYMBOL, rebuild_hint);
  }
  const isthmus_backend* backend = entry();
  const std::string wrong = check_backend(backend);
  if (!wrong.empty()) {
    dlclose(library);
    throw plugin_error(path, wrong, rebuild_hint);
  }
  return backend;  // the library stays open: see the header
}

std::vector<fs::path> plugin_folders() {
  std::vector<fs::path> folders;
  if (const char* configured = std::getenv("ISTHMUS_PLUGIN_PATH")) {
    std::istringstream list(configured);
    for (std::string folder; std::getline(list, folder, ':');)
      if (!folder.empty()) folders.emplace_back(folder);
  }
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&isthmus_version), &self) != 0 && self.dli_fname != nullptr) {
    std::error_code failure;
    const auto library = fs::canonical(self.dli_fname, failure);
    if (!failure) folders.push_back(library.parent_path() / "isthmus");
  }
  return folders;
}

std::vector<fs::path> plugin_files() {
  std::vector<fs::path> files;
  for (const fs::path& folder : plugin_folders()) {
    std::error_code failure;
    std::vector<fs::path> found;
    for (const auto& file : fs::directory_iterator(folder, failure))
      if (file.path().extension() == ".so") found.push_back(file.path());
    std::sort(found.begin(), found.end());  // directory order differs between machines
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

const backend_entry* find_name(const std::vector<backend_entry>& entries, const std::string& name) {
  for (const backend_entry& entry : entries)
    if (entry.backend != nullptr && entry.name == name) return &entry;
  return nullptr;
}

void add_configured(std::vector<backend_entry>& entries, const std::string& name, const std::string& path) {
  const isthmus_backend* backend = load_plugin(path);
  if (backend->name != name)
    throw plugin_error(path, fmt::format("it holds the backend \"{}\", not \"{}\"", backend->name, name),
                       "use the plug-in's own name in the config file");
  const backend_entry* other = find_name(entries, name);
  if (other != nullptr && other->backend == backend) return;
  if (other != nullptr)
    throw plugin_error(path, fmt::format("the name \"{}\" is already taken by {}", name, other->source),
                       "backend names are unique; remove one of the two");
  entries.push_back({name, backend, path, ""});
}

void add_scanned(std::vector<backend_entry>& entries, const std::string& path) {
  try {
    const isthmus_backend* backend = load_plugin(path);
    const backend_entry* other = find_name(entries, backend->name);
    if (other == nullptr)
      entries.push_back({backend->name, backend, path, ""});
    else if (other->backend != backend)
      entries.push_back({fs::path(path).stem(), nullptr, path,
                         fmt::format("its name \"{}\" is already taken by {}", backend->name, other->source)});
  } catch (const error& failure) {
    entries.push_back({fs::path(path).stem(), nullptr, path, failure.what()});
  }
}

bool is_backend_name(std::string_view name) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

std::string check_backend(const isthmus_backend* backend) {
  if (backend == nullptr) return ISTHMUS_BACKEND_SYMBOL " returned NULL";
  if (backend->magic != ISTHMUS_BACKEND_MAGIC)
    return fmt::format("magic is {:#x}, not {:#x}: this is no Isthmus backend", backend->magic,
                       ISTHMUS_BACKEND_MAGIC);
  if (backend->abi_version != ISTHMUS_BACKEND_ABI)
    return fmt::format("it was built for backend ABI {}, {} than this library's {}", backend->abi_version,
                       backend->abi_version < ISTHMUS_BACKEND_ABI ? "older" : "newer", ISTHMUS_BACKEND_ABI);
  if (backend->struct_bytes < sizeof(isthmus_backend))
    return fmt::format("its isthmus_backend has {} bytes, {} are needed", backend->struct_bytes,
                       sizeof(isthmus_backend));
  if (backend->name == nullptr || !is_backend_name(backend->name))
    return fmt::format("its name \"{}\" does not match [a-z][a-z0-9_]*",
                       backend->name == nullptr ? "" : backend->name);
  constexpr std::uint32_t all_platforms = (1u << ISTHMUS_PLATFORM_COUNT) - 1;
  if (backend->platforms == 0 || (backend->platforms & ~all_platforms) != 0)
    return fmt::format("its platform mask {:#x} has no known platform or unknown ones", backend->platforms);
  if (backend->create == nullptr || backend->destroy == nullptr || backend->supports == nullptr ||
      backend->enqueue == nullptr)
    return "create, destroy, supports and enqueue must not be NULL";
  if ((backend->group_start == nullptr) != (backend->group_end == nullptr))
    return "group_start and group_end must both be NULL or both be set";
  if ((backend->split == nullptr) != (backend->drop_part == nullptr))
    return "split and drop_part must both be NULL or both be set";
  if ((backend->block_added == nullptr) != (backend->block_removed == nullptr))
    return "block_added and block_removed must both be NULL or both be set";
  return "";
}

const isthmus_backend* load_plugin(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, const isthmus_backend*> loaded;
  const std::lock_guard lock(mutex);
  std::error_code ignored;
  const bool searched = path.find('/') == std::string::npos;
  const std::string key = searched ? path : fs::weakly_canonical(path, ignored).string();
  const auto known = loaded.find(key);
  if (known != loaded.end()) return known->second;
  const isthmus_backend* backend = open_plugin(path);
  loaded.emplace(key, backend);
  log(log_level::info, "loaded backend {} from {}", backend->name, path);
  return backend;
}

std::vector<backend_entry> find_backends(const std::vector<std::pair<std::string, std::string>>& configured) {
  std::vector<backend_entry> entries;
  for (const isthmus_backend* backend : builtin_backends())
    entries.push_back({backend->name, backend, "built-in", ""});
  for (const auto& [name, path] : configured) add_configured(entries, name, path);
  for (const fs::path& file : plugin_files()) add_scanned(entries, file.string());
  return entries;
}

}  // namespace isthmus
