// A backend whose enqueue fails on one rank, like a faulty library: by a status or by an exception. The other
// ranks are inside enqueue at that time and wait until the communicator is aborted. Before the fault it
// communicates nothing; results equal the input.
#include <isthmus/backend.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace {

struct faulty_state {
  const isthmus_backend_context& context;
  bool fails_eventually;
  int remaining_calls;  // until the fault
};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_faulty_rank(const isthmus_backend_context& context) {
  return context.rank == std::atoi(variable("FAULT_RANK").c_str());
}

isthmus_status fail(const isthmus_backend_context& context) {
  const std::string fault = variable("FAULT");
  if (fault == "plugin_throws") throw std::runtime_error("the library's own exception");
  if (fault == "plugin_throws_int") throw 42;
  return context.fail(context.runtime, ISTHMUS_ERROR_BACKEND, 77, "plugin.cpp", "a hint of the library",
                      "the library failed on rank %d", context.rank);
}

isthmus_status create(const isthmus_backend_context* context, void** result) {
  *result = nullptr;
  if (variable("FAULT_AT") == "0" && is_faulty_rank(*context)) return fail(*context);
  *result = new (std::nothrow)
      faulty_state{*context, is_faulty_rank(*context), std::atoi(variable("FAULT_AT").c_str())};
  return *result == nullptr ? ISTHMUS_ERROR_OUT_OF_MEMORY : ISTHMUS_SUCCESS;
}

void destroy(void* pointer) { delete static_cast<faulty_state*>(pointer); }
const char* supports(void*, const isthmus_operation*, int) { return nullptr; }

isthmus_status enqueue(void* pointer, const isthmus_operation*, const int*, size_t) {
  auto& self = *static_cast<faulty_state*>(pointer);
  if (self.remaining_calls-- > 0) return ISTHMUS_SUCCESS;
  if (self.fails_eventually) return fail(self.context);
  while (self.context.is_aborted(self.context.runtime) == 0) usleep(200);
  return ISTHMUS_ERROR_ABORTED;
}

isthmus_backend make() {
  isthmus_backend backend{};
  backend.struct_bytes = sizeof backend;
  backend.magic = ISTHMUS_BACKEND_MAGIC;
  backend.abi_version = ISTHMUS_BACKEND_ABI;
  backend.name = "faulty";
  backend.description = "fails on one rank";
  backend.capabilities = ISTHMUS_BACKEND_BLOCKING;
  backend.platforms = 1u << ISTHMUS_PLATFORM_HOST;
  backend.create = create;
  backend.destroy = destroy;
  backend.supports = supports;
  backend.enqueue = enqueue;
  return backend;
}

}  // namespace

extern "C" ISTHMUS_BACKEND_EXPORT const isthmus_backend* isthmus_backend_v1() {
  static const isthmus_backend backend = make();
  return &backend;
}
