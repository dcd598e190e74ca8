#include "core/plugin.hpp"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/trust.hpp"

namespace isthmus {
namespace {

namespace fs = std::filesystem;

constexpr const char* rebuild_hint = "rebuild the plug-in against the isthmus/backend.h of this version";

error plugin_error(const std::string& path, const std::string& problem, const char* hint) {
  return make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE, fmt::format("plug-in {}: {}", path, problem), hint);
}

const isthmus_backend* open_plugin(const std::string& path) {
  std::error_code ignored;
  const bool is_searched = path.find('/') == std::string::npos;  // dlopen then searches its own folders
  if (!is_searched && !fs::exists(path, ignored))
    throw plugin_error(path, "the file does not exist",
                       "correct the path in the config file, or remove this setting");
  std::string file = path;
  if (const std::string refusal = is_searched ? "" : check_code_path(file); !refusal.empty())
    throw plugin_error(path, refusal,
                       "chown or chmod it, or move it to a folder that only you and root can write");
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw plugin_error(path, dlerror(), "pass a shared library whose dependencies the loader can find");
  try {
    void* const entry_point = dlsym(library, ISTHMUS_BACKEND_SYMBOL);
    if (entry_point == nullptr) throw std::invalid_argument("it does not export " ISTHMUS_BACKEND_SYMBOL);
    const isthmus_backend* const backend = reinterpret_cast<const isthmus_backend* (*)()>(entry_point)();
    check_backend(backend);
    return backend;  // keep the library open: see the header
  } catch (...) {
    const std::string problem = current_error().what();
    dlclose(library);
    throw plugin_error(path, problem, rebuild_hint);
  }
}

std::vector<fs::path> configured_folders() {
  std::vector<fs::path> folders;
  if (const char* search_path = environment_variable(plugin_path_variable)) {
    std::istringstream list(search_path);
    for (std::string folder; std::getline(list, folder, ':');)
      if (!folder.empty()) folders.emplace_back(folder);
  }
  return folders;
}

// The folder next to this library; empty if unknown.
fs::path own_plugin_folder() {
  Dl_info library_info{};
  if (dladdr(reinterpret_cast<const void*>(&isthmus_version), &library_info) == 0 ||
      library_info.dli_fname == nullptr)
    return {};
  std::error_code failure;
  const auto library = fs::canonical(library_info.dli_fname, failure);
  return failure ? fs::path() : library.parent_path() / "isthmus";
}

// Files that may be plug-ins, and why folders of ISTHMUS_PLUGIN_PATH cannot be read.
struct plugin_scan {
  std::vector<fs::path> files;
  std::vector<std::string> problems;
};

std::error_code add_files(const fs::path& folder, std::vector<fs::path>& files) {
  std::error_code failure;
  const auto begin = static_cast<std::ptrdiff_t>(files.size());
  for (const auto& file : fs::directory_iterator(folder, failure))
    if (file.path().extension() == ".so") files.push_back(file.path());
  std::sort(files.begin() + begin, files.end());  // directory order differs between file systems
  return failure;
}

plugin_scan scan_plugins() {
  plugin_scan scan;
  for (const fs::path& folder : configured_folders())
    if (const std::error_code failure = add_files(folder, scan.files))
      scan.problems.push_back(fmt::format("cannot read the folder {}: {}{}", folder.string(), failure.message(),
                                          folder.is_absolute() ? "" : " (use an absolute path)"));
  static_cast<void>(add_files(own_plugin_folder(), scan.files));  // it may not exist
  return scan;
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
                       "remove one of the two: backend names must be unique");
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
                         fmt::format("plug-in {}: its name \"{}\" is already taken by {}", path, backend->name,
                                     other->source)});
  } catch (const error& failure) {
    entries.push_back({fs::path(path).stem(), nullptr, path, failure.what()});
  }
}

// The first three fields have the same offsets in every ABI.
void check_version(const isthmus_backend* backend) {
  if (backend == nullptr) throw std::invalid_argument("it gave NULL instead of an isthmus_backend");
  if (backend->magic != ISTHMUS_BACKEND_MAGIC)
    throw std::invalid_argument(fmt::format("magic is {:#x}, not {:#x}: this is no Isthmus backend",
                                            backend->magic, ISTHMUS_BACKEND_MAGIC));
  if (backend->abi_version != ISTHMUS_BACKEND_ABI)
    throw std::invalid_argument(
        fmt::format("it was built for backend ABI {}, {} than this library's {}", backend->abi_version,
                    backend->abi_version < ISTHMUS_BACKEND_ABI ? "older" : "newer", ISTHMUS_BACKEND_ABI));
  if (backend->struct_bytes != sizeof *backend)
    throw std::invalid_argument(
        fmt::format("its isthmus_backend has {} bytes, but backend ABI {} of this library has {}",
                    backend->struct_bytes, ISTHMUS_BACKEND_ABI, sizeof *backend));
}

void check_fields(const isthmus_backend& backend) {
  const auto require = [](bool is_satisfied, const std::string& problem) {
    if (!is_satisfied) throw std::invalid_argument(problem);
  };
  const auto are_paired = [](auto* a, auto* b) { return (a == nullptr) == (b == nullptr); };
  const char* const name = backend.name == nullptr ? "" : backend.name;
  require(is_identifier(name), fmt::format("its name \"{}\" does not match [a-z][a-z0-9_]*", name));
  constexpr std::uint32_t all_platforms = (1u << ISTHMUS_PLATFORM_COUNT) - 1;
  require(backend.platforms != 0 && (backend.platforms & ~all_platforms) == 0,
          fmt::format("its platform mask {:#x} contains no platform or an unknown one", backend.platforms));
  require(backend.create != nullptr && backend.destroy != nullptr && backend.supports != nullptr &&
              backend.enqueue != nullptr,
          "create, destroy, supports and enqueue must not be NULL");
  require(are_paired(backend.group_start, backend.group_end),
          "group_start and group_end must both be NULL or both be set");
  require(are_paired(backend.split, backend.discard_split_state),
          "split and discard_split_state must both be NULL or both be set");
  require(are_paired(backend.register_block, backend.unregister_block),
          "register_block and unregister_block must both be NULL or both be set");
}

}  // namespace

void check_backend(const isthmus_backend* backend) {
  check_version(backend);
  check_fields(*backend);
}

const isthmus_backend* load_plugin(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, const isthmus_backend*> loaded_backends;
  const std::lock_guard lock(mutex);
  std::error_code ignored;
  const bool is_searched = path.find('/') == std::string::npos;
  const std::string key = is_searched ? path : fs::weakly_canonical(path, ignored).string();
  const auto known = loaded_backends.find(key);
  if (known != loaded_backends.end()) return known->second;
  const isthmus_backend* backend = open_plugin(path);
  loaded_backends.emplace(key, backend);
  // Every machine loads the packaged plug-ins, also those of platforms that it lacks.
  const bool is_packaged = fs::path(path).parent_path() == own_plugin_folder();
  log(is_packaged ? log_level::debug : log_level::info, "loaded backend {} from {}", backend->name, path);
  return backend;
}

std::vector<backend_entry> load_backends(
    const std::vector<std::pair<std::string, std::string>>& configured_plugins) {
  std::vector<backend_entry> entries;
  for (const isthmus_backend* backend : builtin_backends())
    entries.push_back({backend->name, backend, built_in_source, ""});
  for (const auto& [name, path] : configured_plugins) add_configured(entries, name, path);
  const plugin_scan scan = scan_plugins();
  for (const fs::path& file : scan.files) add_scanned(entries, file.string());
  if (!scan.problems.empty())
    entries.push_back({plugin_path_variable, nullptr, plugin_path_variable,
                       fmt::format("{}: {}", plugin_path_variable, fmt::join(scan.problems, "; "))});
  return entries;
}

}  // namespace isthmus
