// Function table of the Level Zero loader (libze_loader.so.1), which is loaded at run time.
#pragma once

#include <level_zero/ze_api.h>

#include <memory>
#include <string>

namespace isthmus {

// Members have the native names without "ze".
struct level_zero_api {
  // Returns nullptr and sets `reason` if this machine has no loader. The loader's environment variables still
  // apply (ZE_ENABLE_VALIDATION_LAYER, ZE_ENABLE_ALT_DRIVERS, ...).
  static std::unique_ptr<level_zero_api> load(std::string& reason);

  // Throws an error if `result` is not success. `call` describes the native call.
  static void check(ze_result_t result, const char* location, const std::string& call);
  static const char* text(ze_result_t result);

#define ISTHMUS_LEVEL_ZERO_FUNCTION(member, name) decltype(&ze##name) member = nullptr;
#include "device/level_zero/functions.def"
  // Null before Level Zero 1.6. Declared here because Debian's headers are older.
  ze_result_t (*mem_put_ipc_handle)(ze_context_handle_t context, ze_ipc_mem_handle_t handle) = nullptr;
};

}  // namespace isthmus
