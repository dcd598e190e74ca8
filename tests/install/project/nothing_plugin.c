/* A backend that supports no operation. It tests only that the plugin can be built and loaded. */
#include <isthmus/backend.h>

static isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = NULL;
  return context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, "nothing_plugin.c", NULL,
                       "the nothing backend supports no operation");
}
static void destroy(void* state) { (void)state; }
static const char* supports(void* state, const isthmus_operation* operation, int algorithm) {
  (void)state, (void)operation, (void)algorithm;
  return "the nothing backend supports no operation";
}
static isthmus_status enqueue(void* state, const isthmus_operation* operations, const int* algorithms,
                              size_t n) {
  (void)state, (void)operations, (void)algorithms, (void)n;
  return ISTHMUS_ERROR_UNSUPPORTED;
}

static const isthmus_backend backend = {
    .struct_bytes = sizeof(isthmus_backend),
    .magic = ISTHMUS_BACKEND_MAGIC,
    .abi_version = ISTHMUS_BACKEND_ABI,
    .name = "nothing",
    .description = "a plugin of an external project",
    .capabilities = ISTHMUS_BACKEND_BLOCKING,
    .platforms = 1u << ISTHMUS_PLATFORM_HOST,
    .create = create,
    .destroy = destroy,
    .supports = supports,
    .enqueue = enqueue,
};

__attribute__((visibility("default"))) const isthmus_backend* isthmus_backend_v1(void) { return &backend; }
