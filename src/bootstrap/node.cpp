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

// "" where there is no such file. A rank that only lacks a descriptor is not on another machine: it fails.
std::string boot_id() {
  std::string boot;
  errno = 0;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const int code = errno;
  if (boot.empty() && (code == EMFILE || code == ENFILE || code == ENOMEM))
    throw make_error(ISTHMUS_ERROR_SYSTEM, ISTHMUS_HERE,
                     fmt::format("this rank's machine can't be told: {}", std::strerror(code)),
                     "raise the limit of open files (ulimit -n)", code);
  return boot;
}

// 0 where the kernel has none: then there is but one.
std::uint64_t own_user_namespace() {
  struct stat status{};
  return ::stat("/proc/self/ns/user", &status) == 0 ? status.st_ino : 0;
}

// What the user calls this rank's node; "": nothing.
std::string given_name() {
  constexpr const char* variable = "ISTHMUS_NODE";
  const char* const text = environment_variable(variable);
  const std::string name = text == nullptr ? "" : text;
  if (name.size() > node_name_bytes)
    throw make_error(ISTHMUS_ERROR_CONFIG, ISTHMUS_HERE,
                     fmt::format("environment {}: the name has {} bytes, at most {} are allowed", variable,
                                 name.size(), node_name_bytes),
                     "a short name that differs between nodes is enough");
  return name;
}

}  // namespace

std::string own_node() {
  const std::string boot = boot_id();
  const std::uint64_t pid_namespace = own_pid_namespace();
  if (boot.empty() || pid_namespace == 0) {  // shares with nobody but itself
    static const auto number = random_value<std::uint64_t>();
    return fmt::format("unknown/{}/{}", getpid(), number);
  }
  return fmt::format("{}/{}/{}/{}/{}", boot, pid_namespace, own_user_namespace(), getuid(), given_name());
}

}  // namespace isthmus
