// Fuzz target for the struct of a plug-in, with any length and fields: it must be accepted or rejected, and no
// byte beyond its length may be read. Pointers are NULL or valid, because validity cannot be checked.
#include "core/plugin.hpp"

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "fuzz/target.hpp"

namespace {

template <typename Pointer>
void set_pointer(Pointer& field, bool present) {
  static int target;
  std::uintptr_t value = present ? reinterpret_cast<std::uintptr_t>(&target) : 0;
  std::memcpy(&field, &value, sizeof value);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::reader in(data, size);
  isthmus_backend backend{};
  backend.struct_bytes = in.take<std::uint16_t>() % (2 * sizeof backend);
  backend.magic = in.take<std::uint8_t>() == 0 ? in.take<std::uint32_t>() : ISTHMUS_BACKEND_MAGIC;
  backend.abi_version = in.take<std::uint8_t>() == 0 ? in.take<std::uint32_t>() : ISTHMUS_BACKEND_ABI;
  backend.capabilities = in.take<std::uint32_t>();
  backend.platforms = in.take<std::uint8_t>() == 0 ? in.take<std::uint32_t>() : 1;
  const auto present = in.take<std::uint32_t>();
  set_pointer(backend.create, (present & 1) != 0);
  set_pointer(backend.destroy, (present & 2) != 0);
  set_pointer(backend.supports, (present & 4) != 0);
  set_pointer(backend.enqueue, (present & 8) != 0);
  set_pointer(backend.group_start, (present & 16) != 0);
  set_pointer(backend.group_end, (present & 32) != 0);
  set_pointer(backend.split, (present & 64) != 0);
  set_pointer(backend.discard_split_state, (present & 128) != 0);
  set_pointer(backend.register_block, (present & 256) != 0);
  set_pointer(backend.unregister_block, (present & 512) != 0);
  std::string name;
  while (const char letter = in.take<char>()) name += letter;
  if ((present & 1024) != 0) backend.name = name.c_str();
  // The sanitizer detects a read beyond the struct. The first three fields are always present.
  constexpr std::size_t prefix_bytes = offsetof(isthmus_backend, name);
  const std::size_t bytes = backend.struct_bytes < prefix_bytes ? prefix_bytes : backend.struct_bytes;
  static void* memory = nullptr;
  memory = std::realloc(memory, bytes);
  std::memcpy(memory, &backend, bytes < sizeof backend ? bytes : sizeof backend);
  try {
    const auto* const accepted = static_cast<const isthmus_backend*>(memory);
    isthmus::check_backend(accepted);
    fuzz::require(accepted->struct_bytes == sizeof backend && accepted->enqueue != nullptr,
                  "an incomplete backend was accepted");
  } catch (const std::invalid_argument& rejection) {
    fuzz::require(rejection.what()[0] != '\0', "a rejection without a reason");
  }
  return 0;
}
