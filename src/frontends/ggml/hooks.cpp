// The three functions that this library interposes when it is preloaded. Each calls the next definition; the
// first one also returns the Isthmus allreduce functions.

#include <atomic>
#include <new>

#include "frontends/ggml/device_group.hpp"
#include "frontends/ggml/ggml_library.hpp"
#include "frontends/ggml/runtime.hpp"

namespace isthmus::ggml {
namespace {

// Caches the next definition for each of the few call sites. The cache is per call site because a
// process can have two runtimes, such as PyTorch's and ggml's, each with its own callers.
template <typename Function>
class next_function {
 public:
  constexpr explicit next_function(const char* name) : m_name(name) {}
  Function* get(const void* caller, const void* own_definition) {
    for (const caller_entry* entry = m_entries.load(std::memory_order_acquire); entry != nullptr;
         entry = entry->next)
      if (entry->caller == caller) return entry->function;
    const auto function = reinterpret_cast<Function*>(next_definition(m_name, caller, own_definition));
    if (function == nullptr) return nullptr;
    auto* entry = new (std::nothrow) caller_entry{caller, function, m_entries.load(std::memory_order_relaxed)};
    while (entry != nullptr && !m_entries.compare_exchange_weak(entry->next, entry, std::memory_order_release))
      continue;
    return function;
  }

 private:
  struct caller_entry {
    const void* caller;
    Function* function;
    caller_entry* next;
  };
  const char* m_name;
  std::atomic<caller_entry*> m_entries{
      nullptr};  // never freed, because calls can arrive until the process exits
};

}  // namespace
}  // namespace isthmus::ggml

// ggml's lookup of a backend's optional functions. The meta backend queries the registry of its first device.
extern "C" [[gnu::visibility("default")]] void* ggml_backend_reg_get_proc_address(
    isthmus::ggml::ggml_registry* registry, const char* name) {
  using namespace isthmus::ggml;
  // Not cached: a process can contain several copies of ggml, each with its own callers.
  const auto next = reinterpret_cast<proc_address_function*>(
      next_definition("ggml_backend_reg_get_proc_address", __builtin_return_address(0),
                      reinterpret_cast<const void*>(&ggml_backend_reg_get_proc_address)));
  if (next == nullptr) return nullptr;
  void* const native_function = next(registry, name);
  void* const replacement = find_comm_function(name);
  if (replacement == nullptr || ggml_library::find(next) == nullptr) return native_function;
  return replacement;
}

// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" [[gnu::visibility("default")]] int cudaEventRecord(void* event, void* stream) {
  using namespace isthmus::ggml;
  constexpr int initialization_error = 3;  // cudaErrorInitializationError
  static next_function<int(void*, void*)> next("cudaEventRecord");
  const auto record = next.get(__builtin_return_address(0), reinterpret_cast<const void*>(&cudaEventRecord));
  if (record == nullptr) return initialization_error;
  stream_watch::record_stream(stream_kind::cuda, stream, reinterpret_cast<const void*>(record));
  return record(event, stream);
}

#if defined(__x86_64__)
// sycl::event sycl::queue::ext_oneapi_submit_barrier(const detail::code_location&), which ggml uses to record
// an event. In the x86-64 C++ ABI, the caller passes the address of the result first, then `this`.
extern "C" [[gnu::visibility("default")]] void* isthmus_hook_submit_barrier(
    void* result, void* queue, const void* location) __asm__(ISTHMUS_SYCL_SUBMIT_BARRIER);
void* isthmus_hook_submit_barrier(void* result, void* queue, const void* location) {
  using namespace isthmus::ggml;
  static next_function<void*(void*, void*, const void*)> next(ISTHMUS_SYCL_SUBMIT_BARRIER);
  const auto submit =
      next.get(__builtin_return_address(0), reinterpret_cast<const void*>(&isthmus_hook_submit_barrier));
  if (submit == nullptr) __builtin_trap();  // cannot happen: the symbol was called, so its library is loaded
  stream_watch::record_stream(stream_kind::sycl, queue, reinterpret_cast<const void*>(submit));
  return submit(result, queue, location);
}
#endif
