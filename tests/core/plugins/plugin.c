// A plug-in with one defect, selected by macros. It is written in C, because plug-ins may be.
#include <isthmus/backend.h>

#ifndef MAGIC
#define MAGIC ISTHMUS_BACKEND_MAGIC
#endif
#ifndef ABI
#define ABI ISTHMUS_BACKEND_ABI
#endif
#ifndef BYTES
#define BYTES sizeof(isthmus_backend)
#endif
#ifndef NAME
#define NAME "bad"
#endif
#ifndef PLATFORMS
#define PLATFORMS 1u
#endif
#ifndef ENQUEUE
#define ENQUEUE enqueue
#endif
#ifndef GROUP_START
#define GROUP_START 0
#endif
#ifndef SYMBOL
#define SYMBOL isthmus_backend_v1
#endif
#ifndef RESULT
#define RESULT &backend
#endif

static isthmus_status create(const isthmus_backend_context* context, void** state) {
  *state = 0;
  return context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, "plugin.c", 0,
                       "plugin.c: this plug-in only tests the loader");
}
static void destroy(void* state) { (void)state; }
static const char* supports(void* state, const isthmus_operation* operation, int algorithm) {
  (void)state, (void)operation, (void)algorithm;
  return "it supports nothing";
}
__attribute__((unused)) static isthmus_status enqueue(void* state, const isthmus_operation* operations,
                                                      const int* algorithms, size_t n) {
  (void)state, (void)operations, (void)algorithms, (void)n;
  return ISTHMUS_ERROR_UNSUPPORTED;
}
__attribute__((unused)) static isthmus_status start(void) { return ISTHMUS_SUCCESS; }

__attribute__((unused)) static const isthmus_backend backend = {.struct_bytes = BYTES,
                                                                .magic = MAGIC,
                                                                .abi_version = ABI,
                                                                .name = NAME,
                                                                .description = "a plug-in for tests",
                                                                .platforms = PLATFORMS,
                                                                .create = create,
                                                                .destroy = destroy,
                                                                .supports = supports,
                                                                .enqueue = ENQUEUE,
                                                                .group_start = GROUP_START};

ISTHMUS_BACKEND_EXPORT const isthmus_backend* SYMBOL(void) { return RESULT; }
