#include "frontends/ggml/core.hpp"

#include <dlfcn.h>

#include <charconv>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>

#include "frontends/ggml/ggml_library.hpp"

namespace isthmus::ggml {
namespace {

// Opens the library `name` in this library's folder. Returns NULL and sets `reason` on failure. The library is never
// closed, because kernels may be in flight at exit. dlopen finds it through this library's run path, $ORIGIN.
void* open_from_own_folder(const char* name, std::string& reason) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* message = dlerror();
    reason = message != nullptr ? message : std::string(name) + " cannot be loaded";
  }
  return library;
}

constexpr std::string_view engine_prefix = "libisthmus_ggml_sycl", engine_suffix = ".so";

std::string soname_of(int runtime) { return "libsycl.so." + std::to_string(runtime); }

std::filesystem::path file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "an unknown file";
}

// Returns the N of libisthmus_ggml_syclN.so, or 0 for other files.
int runtime_version(const std::string& file) {
  if (!file.starts_with(engine_prefix) || !file.ends_with(engine_suffix)) return 0;
  int runtime = 0;
  const char* last = file.data() + file.size() - engine_suffix.size();
  const auto [end, error] = std::from_chars(file.data() + engine_prefix.size(), last, runtime);
  return error == std::errc{} && end == last ? runtime : 0;
}

// Returns the runtimes that have an engine in this library's folder.
std::set<int> available_runtimes() {
  std::set<int> runtimes;
  std::error_code ignored;
  const auto folder = file_of(reinterpret_cast<const void*>(&open_sycl_engine)).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder.empty() ? "." : folder, ignored))
    if (const int runtime = runtime_version(entry.path().filename()); runtime > 0) runtimes.insert(runtime);
  return runtimes;
}

}  // namespace

const core_functions* open_core(std::string& reason) {
  static std::mutex mutex;
  static core_functions functions{};
  static bool is_open = false;
  const std::lock_guard lock(mutex);
  if (is_open) return &functions;
  void* library = open_from_own_folder(ISTHMUS_CORE_SONAME, reason);
  if (library == nullptr) return nullptr;
  const auto find = [library](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  is_open = find("isthmus_tensor_parallel_create", functions.create) &&
            find("isthmus_tensor_parallel_allreduce", functions.allreduce) &&
            find("isthmus_tensor_parallel_destroy", functions.destroy) &&
            find("isthmus_last_error", functions.last_error);
  if (!is_open) reason = ISTHMUS_CORE_SONAME " has a different version than this library";
  return is_open ? &functions : nullptr;
}

const isthmus_tensor_parallel_engine* open_sycl_engine(const void* function, std::string& reason) {
  std::string available;
  for (const int runtime : available_runtimes()) {
    const std::string soname = soname_of(runtime);
    available += (available.empty() ? "" : ", ") + soname;
    // Compare addresses: a process can have two runtimes, and they cannot use each other's queues.
    if (loaded_library(soname.c_str()).find(ISTHMUS_SYCL_SUBMIT_BARRIER) != function) continue;
    const std::string file = std::string(engine_prefix) + std::to_string(runtime) + std::string(engine_suffix);
    void* library = open_from_own_folder(file.c_str(), reason);
    if (library == nullptr) return nullptr;
    using entry_point = const isthmus_tensor_parallel_engine* (*)();
    const auto entry = reinterpret_cast<entry_point>(dlsym(library, ISTHMUS_TENSOR_PARALLEL_ENGINE_SYMBOL));
    if (entry == nullptr) reason = file + " contains no engine";
    return entry == nullptr ? nullptr : entry();
  }
  reason = available.empty() ? "Isthmus was built without SYCL"
                             : "no engine for the program's SYCL runtime " +
                                   file_of(function).filename().string() + "; available engines: " + available;
  return nullptr;
}

}  // namespace isthmus::ggml
