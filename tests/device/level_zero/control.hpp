// Controls the stand-in driver that the Level Zero loader of this process has loaded.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "device/level_zero/standin.h"

namespace standin_control {

template <typename Function>
Function* find(const char* name) {
  static void* library = dlopen(std::getenv("ZE_ENABLE_ALT_DRIVERS"), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error("the loader has not loaded the stand-in");
  return reinterpret_cast<Function*>(dlsym(library, name));
}

inline std::uint64_t calls(const char* name) { return find<standin_calls_function>("standin_calls")(name); }
inline void set_peers(bool can_access) {
  find<standin_set_peers_function>("standin_set_peers")(can_access ? 1 : 0);
}
inline void hold(bool is_held) { find<standin_hold_function>("standin_hold")(is_held ? 1 : 0); }
inline int live() { return find<standin_live_function>("standin_live")(); }

}  // namespace standin_control
