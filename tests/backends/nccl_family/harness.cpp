#include "harness.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <barrier>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "topology/threads.hpp"

namespace harness {

struct rank_group::start_barrier {
  explicit start_barrier(int size) : barrier(size) {}
  std::barrier<> barrier;
};

namespace {

void* open(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return library;
}

template <typename Function>
Function function(void* library, const char* name) {
  void* const address = dlsym(library, name);
  if (address == nullptr) throw std::runtime_error(std::string("no function ") + name);
  return reinterpret_cast<Function>(address);
}

}  // namespace

// Functions of the backend context; `runtime` is the rank.
struct callbacks {
  static isthmus_status allgather(void* runtime, const void* own_data, void* all, size_t bytes) {
    rank& self = *static_cast<rank*>(runtime);
    rank_group& group = *self.owner;
    {
      const std::lock_guard lock(group.m_mutex);
      group.m_exchanged.resize(bytes * static_cast<std::size_t>(group.size()));
      std::memcpy(group.m_exchanged.data() + bytes * static_cast<std::size_t>(self.context.rank), own_data,
                  bytes);
    }
    group.m_start_barrier->barrier.arrive_and_wait();
    std::memcpy(all, group.m_exchanged.data(), bytes * static_cast<std::size_t>(group.size()));
    group.m_start_barrier->barrier.arrive_and_wait();
    return ISTHMUS_SUCCESS;
  }
  static const char* option(void* runtime, const char* key) {
    const auto& options = static_cast<rank*>(runtime)->owner->m_settings.options;
    const auto entry = options.find(key);
    return entry == options.end() ? nullptr : entry->second.c_str();
  }
  static isthmus_status fail(void* runtime, isthmus_status status, int64_t native_code, const char* location,
                             const char* hint, const char* format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    static_cast<rank*>(runtime)->last = {status, native_code, location, hint != nullptr ? hint : "", text};
    return status;
  }
  static isthmus_status fail_with_ranks(void* runtime, const int*, std::size_t, isthmus_status status,
                                        int64_t native_code, const char* location, const char* hint,
                                        const char* format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return fail(runtime, status, native_code, location, hint, "%s", text);
  }
  static void log(void* runtime, int, const char* format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    static_cast<rank*>(runtime)->log.emplace_back(text);
  }
  static int aborted(void* runtime) { return static_cast<rank*>(runtime)->owner->m_aborted ? 1 : 0; }
  static int heap_find(void*, const void*, uint64_t, isthmus_heap_block*, uint64_t*) { return 0; }
};

const isthmus_backend& plugin(const std::string& name) {
  void* const library = open(std::string(PLUGIN_FOLDER) + "/libisthmus_" + name + ".so");
  return *function<const isthmus_backend* (*)()>(library, ISTHMUS_BACKEND_SYMBOL)();
}

std::string standin_path(const std::string& library) {
  return std::string(STANDIN_FOLDER) + "/lib" + library + ".so";
}

void* standin(const std::string& library, const char* name) {
  return function<void*>(open(standin_path(library)), name);
}

rank_group::rank_group(settings config)
    : m_settings(std::move(config)),
      m_backend(plugin(m_settings.backend)),
      m_zeros(static_cast<std::size_t>(m_settings.size)),
      m_processes(static_cast<std::size_t>(m_settings.size)),
      m_pids(static_cast<std::size_t>(m_settings.size), getpid()),
      m_start_barrier(std::make_unique<start_barrier>(m_settings.size)) {
  m_settings.options.try_emplace("library", standin_path("standin_nccl"));
  m_settings.options.try_emplace("runtime_library", standin_path("standin_device"));
  for (int index = 0; index < m_settings.size; ++index) {
    auto new_rank = std::make_unique<rank>();
    new_rank->owner = this;
    isthmus_backend_context& context = new_rank->context;
    context.struct_bytes = sizeof(context);
    context.runtime = new_rank.get();
    context.rank = context.node_rank = index;
    context.size = context.node_size = context.process_size = m_settings.size;
    context.node_of = m_zeros.data();
    context.process_of = m_processes.data();
    context.pid_of = m_pids.data();
    context.device = {m_settings.platform, index};
    context.timeout_s = m_settings.timeout_s;
    if (!m_settings.split_states.empty())
      context.split_state = m_settings.split_states[static_cast<std::size_t>(index)];
    context.allgather = callbacks::allgather;
    context.option = callbacks::option;
    context.fail = callbacks::fail;
    context.fail_with_ranks = callbacks::fail_with_ranks;
    context.log = callbacks::log;
    context.is_aborted = callbacks::aborted;
    context.heap_find = callbacks::heap_find;
    m_ranks.push_back(std::move(new_rank));
  }
  const auto set_device = reinterpret_cast<int (*)(int)>(standin("standin_device", "cudaSetDevice"));
  const auto stream_create = reinterpret_cast<int (*)(void**)>(standin("standin_device", "cudaStreamCreate"));
  for_each_rank([&](rank& self) {
    if (set_device(self.context.rank) == 0) stream_create(&self.stream);
    self.created = m_backend.create(&self.context, &self.state);
  });
}

rank_group::~rank_group() {
  destroy();
  const auto stream_destroy = reinterpret_cast<int (*)(void*)>(standin("standin_device", "cudaStreamDestroy"));
  for (auto& each : m_ranks)
    if (each->stream != nullptr) stream_destroy(each->stream);
}

void rank_group::for_each_rank(const std::function<void(rank&)>& work) {
  topology::run_on_each_rank(size(), [&](int index) { work(at(index)); });
}

void rank_group::synchronize(rank& target) {
  static const auto wait = reinterpret_cast<int (*)(void*)>(standin("standin_device", "cudaStreamSynchronize"));
  wait(target.stream);
}

void rank_group::abort() {
  m_aborted = true;
  for (auto& target : m_ranks)
    if (target->state != nullptr) m_backend.abort(target->state);
}

void rank_group::destroy() {
  for_each_rank([this](rank& self) {
    if (self.state != nullptr) m_backend.destroy(self.state);
    self.state = nullptr;
  });
}

}  // namespace harness
