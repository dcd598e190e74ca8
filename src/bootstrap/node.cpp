#include "bootstrap/node.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.hpp"
#include "base/process.hpp"
#include "base/random.hpp"
#include "base/trust.hpp"

namespace isthmus {
namespace {

// Returns "" if the file does not exist. Throws if descriptors or memory are exhausted, because that condition
// must not look like another node.
std::string boot_id() {
  std::string id;
  errno = 0;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  const int code = errno;
  if (id.empty() && (code == EMFILE || code == ENFILE || code == ENOMEM))
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                     fmt::format("communicator_create: cannot read /proc/sys/kernel/random/boot_id: {}",
                                 std::strerror(code)),
                     "raise the limit of open files (ulimit -n)", code);
  return id;
}

// Returns 0 if the kernel has no user namespaces, because then there is only one.
std::uint64_t own_user_namespace() {
  struct stat status{};
  return ::stat("/proc/self/ns/user", &status) == 0 ? status.st_ino : 0;
}

// Value of ISTHMUS_NODE; "" if it is not set.
std::string configured_name() {
  constexpr const char* variable = "ISTHMUS_NODE";
  const char* const text = environment_variable(variable);
  const std::string name = text == nullptr ? "" : text;
  if (name.size() > max_node_name_bytes)
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                     fmt::format("environment {}: the name has {} bytes, must have at most {}", variable,
                                 name.size(), max_node_name_bytes),
                     "use a short name that differs between nodes");
  return name;
}

}  // namespace

std::string own_node_id() {
  const std::string id = boot_id();
  const std::uint64_t pid_namespace = current_pid_namespace();
  if (id.empty() || pid_namespace == 0) {  // shares memory with no other process
    static const auto suffix = random_value<std::uint64_t>();
    return fmt::format("unknown/{}/{}", getpid(), suffix);
  }
  return fmt::format("{}/{}/{}/{}/{}", id, pid_namespace, own_user_namespace(), getuid(), configured_name());
}

}  // namespace isthmus
