#include "frontends/ggml/runtime.hpp"

#include <dlfcn.h>

#include <charconv>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>

#include "device/gpu/functions.hpp"
#include "frontends/preload/engine_loader.hpp"

namespace isthmus::ggml {

// ---- streams ----

namespace {

thread_local stream_watch* active_watch = nullptr;

stream_lookup record_one_event(const ggml_library& ggml, ggml_backend* backend, stream_kind kind) {
  ggml_event* event = ggml.make_event(ggml.get_device(backend));
  if (event == nullptr) return {.reason = "the backend was built without events"};
  stream_watch watch(kind);
  ggml.record_event(event, backend);
  ggml.synchronize_event(event);
  ggml.free_event(event);
  if (watch.has_exactly_one()) return {.stream = watch.stream(), .function = watch.function()};
  return {.reason = "recording an event did not call the shared runtime library (is it linked statically?)"};
}

}  // namespace

stream_watch::stream_watch(stream_kind kind) : m_kind(kind) { active_watch = this; }
stream_watch::~stream_watch() { active_watch = nullptr; }

void stream_watch::record_stream(stream_kind kind, void* stream, const void* function) noexcept {
  if (active_watch == nullptr || active_watch->m_kind != kind) return;
  active_watch->m_stream = stream;
  active_watch->m_function = function;
  ++active_watch->m_event_count;
}

stream_lookup find_stream(const ggml_library& ggml, ggml_backend* backend, stream_kind kind) {
  stream_lookup first = record_one_event(ggml, backend, kind);
  if (!first.reason.empty()) return first;
  stream_lookup second = record_one_event(ggml, backend, kind);
  if (second.reason.empty() && second.stream != first.stream)
    return {.reason = "the backend changes streams between events"};
  return second;
}

int cuda_ordinal_of(void* stream) {
  int (*context_of)(void* stream, void** context);
  int (*push)(void* context);
  int (*device)(int*);
  int (*pop)(void** context);
  const loaded_library driver(gpu::cuda_driver_name);
  if (!driver.find("cuStreamGetCtx", context_of) || !driver.find("cuCtxPushCurrent_v2", push) ||
      !driver.find("cuCtxGetDevice", device) || !driver.find("cuCtxPopCurrent_v2", pop))
    return -1;
  void* context = nullptr;
  if (context_of(stream, &context) != 0 || push(context) != 0) return -1;
  int ordinal = -1;
  if (device(&ordinal) != 0) ordinal = -1;
  void* popped_context = nullptr;
  (void)pop(&popped_context);
  return ordinal;
}

// ---- libraries of Isthmus ----

namespace {

// Opens the library `name` in this library's folder, unless the program has loaded it. Returns NULL and sets `reason` on
// failure. The library is never closed, because kernels may be in flight at exit.
void* open_library(const char* name, std::string& reason) {
  void* library = preload::find_loaded(name);
  if (library == nullptr)
    library = preload::open_from_own_folder(reinterpret_cast<const void*>(&open_core), name, RTLD_NOW);
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
  void* library = open_library(ISTHMUS_CORE_SONAME, reason);
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
    void* library = open_library(file.c_str(), reason);
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
