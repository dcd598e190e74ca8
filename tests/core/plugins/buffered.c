// The stand-in backend under a second name. Its sends are buffered. Both record into the same list.
#include <dlfcn.h>
#include <isthmus/backend.h>
#include <stddef.h>

ISTHMUS_BACKEND_EXPORT const isthmus_backend* isthmus_backend_v1(void) {
  static isthmus_backend backend;
  void* const library = dlopen(STANDIN_PLUGIN_PATH, RTLD_NOW);
  const isthmus_backend* (*entry)(void) = NULL;
  *(void**)&entry = library == NULL ? NULL : dlsym(library, ISTHMUS_BACKEND_SYMBOL);
  if (entry == NULL) return NULL;
  backend = *entry();
  backend.name = "buffered";
  backend.capabilities = ISTHMUS_BACKEND_BUFFERED_SENDS;
  return &backend;
}
