// The struct that a plug-in gives, of any length and with any fields: taken or refused, and no byte beyond its
// length is read. Pointers are NULL or valid, as nobody can tell others.
#include "core/plugin.hpp"

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "fuzz/target.hpp"

namespace {

template <typename Pointer>
void set(Pointer& field, bool present) {
  static int target;
  std::uintptr_t value = present ? reinterpret_cast<std::uintptr_t>(&target) : 0;
  std::memcpy(&field, &value, sizeof value);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::reader in(data, size);
  isthmus_backend given{};
  given.struct_bytes = in.take<std::uint16_t>() % (2 * sizeof given);
  given.magic = in.take<std::uint8_t>() == 0 ? in.take<std::uint32_t>() : ISTHMUS_BACKEND_MAGIC;
  given.abi_version = in.take<std::uint8_t>() == 0 ? in.take<std::uint32_t>() : ISTHMUS_BACKEND_ABI;
  given.capabilities = in.take<std::uint32_t>();
  given.platforms = in.take<std::uint8_t>() == 0 ? in.take<std::uint32_t>() : 1;
  const auto present = in.take<std::uint32_t>();
  set(given.create, (present & 1) != 0);
  set(given.destroy, (present & 2) != 0);
  set(given.supports, (present & 4) != 0);
  set(given.enqueue, (present & 8) != 0);
  set(given.group_start, (present & 16) != 0);
  set(given.group_end, (present & 32) != 0);
  set(given.split, (present & 64) != 0);
  set(given.discard_split_state, (present & 128) != 0);
  set(given.register_block, (present & 256) != 0);
  set(given.unregister_block, (present & 512) != 0);
  std::string name;
  while (const char letter = in.take<char>()) name += letter;
  if ((present & 1024) != 0) given.name = name.c_str();
  // The sanitizer sees a read beyond the struct; the first three fields are always there.
  constexpr std::size_t fixed = offsetof(isthmus_backend, name);
  const std::size_t bytes = given.struct_bytes < fixed ? fixed : given.struct_bytes;
  static void* memory = nullptr;
  memory = std::realloc(memory, bytes);
  std::memcpy(memory, &given, bytes < sizeof given ? bytes : sizeof given);
  try {
    const isthmus_backend* const taken = isthmus::adopt_backend(static_cast<const isthmus_backend*>(memory));
    fuzz::require(taken->struct_bytes >= sizeof given && taken->enqueue != nullptr,
                  "an incomplete backend was taken");
  } catch (const std::invalid_argument& refusal) {
    fuzz::require(refusal.what()[0] != '\0', "a refusal without a reason");
  }
  return 0;
}
