// The three definitions that stand in front of others when this library is preloaded. Each does what the
// next definition does; the first answers three names by itself.

#include <atomic>
#include <new>

#include "frontends/ggml/device_group.hpp"
#include "frontends/ggml/ggml_library.hpp"
#include "frontends/ggml/streams.hpp"
#include "frontends/ggml/sycl_runtime.hpp"
#include "frontends/ggml/symbols.hpp"

namespace isthmus::ggml {
namespace {

// Looked up at the first call from each place in the program and kept: a few places, and after that a short
// walk. By place, because a process may have two runtimes, say PyTorch's and ggml's, each with its own callers.
template <typename Function>
class next_function {
 public:
  constexpr explicit next_function(const char* name) : m_name(name) {}
  Function* get(const void* caller, const void* own_definition) {
    for (const caller_entry* each = m_entries.load(std::memory_order_acquire); each != nullptr; each = each->next)
      if (each->caller == caller) return each->function;
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
  std::atomic<caller_entry*> m_entries{nullptr};  // never freed: calls may come until the end of the process
};

}  // namespace
}  // namespace isthmus::ggml

// ggml's look-up of a backend's optional functions. The meta backend asks the first device's registry.
extern "C" [[gnu::visibility("default")]] void* ggml_backend_reg_get_proc_address(
    isthmus::ggml::ggml_registry* registry, const char* name) {
  using namespace isthmus::ggml;
  // Not kept: a process may hold several copies of ggml, each with its own callers.
  const auto next = reinterpret_cast<find_procedure*>(
      next_definition("ggml_backend_reg_get_proc_address", __builtin_return_address(0),
                      reinterpret_cast<const void*>(&ggml_backend_reg_get_proc_address)));
  if (next == nullptr) return nullptr;
  void* const native_function = next(registry, name);
  void* const replacement = find_comm_function(name);
  if (replacement == nullptr || ggml_library::from_procedure(next) == nullptr) return native_function;
  return replacement;
}

// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" [[gnu::visibility("default")]] int cudaEventRecord(void* event, void* stream) {
  using namespace isthmus::ggml;
  constexpr int initialization_error = 3;  // cudaErrorInitializationError
  static next_function<int(void*, void*)> next("cudaEventRecord");
  const auto record = next.get(__builtin_return_address(0), reinterpret_cast<const void*>(&cudaEventRecord));
  if (record == nullptr) return initialization_error;
  stream_watch::note(stream_kind::cuda, stream, reinterpret_cast<const void*>(record));
  return record(event, stream);
}

#if defined(__x86_64__)
// sycl::event sycl::queue::ext_oneapi_submit_barrier(const detail::code_location&), which is what ggml records
// an event with. By the C++ ABI of x86-64 the caller passes the place of the result first, then `this`.
extern "C" [[gnu::visibility("default")]] void* isthmus_hook_submit_barrier(
    void* result, void* queue, const void* location) __asm__(ISTHMUS_SYCL_SUBMIT_BARRIER);
void* isthmus_hook_submit_barrier(void* result, void* queue, const void* location) {
  using namespace isthmus::ggml;
  static next_function<void*(void*, void*, const void*)> next(ISTHMUS_SYCL_SUBMIT_BARRIER);
  const auto submit =
      next.get(__builtin_return_address(0), reinterpret_cast<const void*>(&isthmus_hook_submit_barrier));
  if (submit == nullptr) __builtin_trap();  // the symbol was reached, so its library is there
  stream_watch::note(stream_kind::sycl, queue, reinterpret_cast<const void*>(submit));
  return submit(result, queue, location);
}
#endif
