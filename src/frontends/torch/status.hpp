// Converts failures of the C API to exceptions of torch.distributed.
#pragma once

#include <c10/util/Exception.h>
#include <isthmus/isthmus.h>

#include <string>

namespace isthmus::torch_backend {

// Returns the information of isthmus_last_error in one line.
inline std::string describe_last_error() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  // Scripts recognize timeouts of torch.distributed by the words "Timed out".
  std::string text = c10::str(
      info.status == ISTHMUS_ERROR_TIMEOUT ? "isthmus: Timed out waiting: " : "isthmus: ", info.message);
  if (info.collective >= 0)
    text += c10::str("; in ", isthmus_collective_name(static_cast<isthmus_collective>(info.collective)),
                     " on rank ", info.rank);
  if (info.backend[0] != '\0') text += c10::str(", backend ", info.backend);
  if (info.native_code != 0) text += c10::str(", native code ", info.native_code);
  if (info.hint[0] != '\0') text += c10::str(" (", info.hint, ")");
  return text;
}

// Throws c10::DistBackendError (torch.distributed.DistBackendError) for anything but success.
inline void check(isthmus_status status) {
  if (status != ISTHMUS_SUCCESS) C10_THROW_ERROR(DistBackendError, describe_last_error());
}

}  // namespace isthmus::torch_backend
