// Ownership and permission checks for files that contain code. These functions are called before Isthmus loads
// a plug-in, a library with an explicit path, or a configuration file that names such code.
#pragma once

#include <climits>
#include <cstdlib>
#include <string>

namespace isthmus {

// Why a file is not trusted: the file or folder, its owner, its mode and the rule.
struct trust_problem {
  char text[PATH_MAX + 256] = "";
};

// Returns whether anyone but a trusted user can replace the file, and sets `reason` in that case.
//
// Trusted users are root, the user of this process, and users who can modify the file that contains this code:
// its owner and, if a group or everyone can write to the file or its folder, these users. After links have been
// resolved, the file and all its parent folders must be owned by trusted users and must not be writable by
// others. Within a sticky folder (/tmp), it suffices that a trusted user owns the next path component.
//
// `resolved` has PATH_MAX bytes, unless it is NULL, and receives the resolved path that was checked.
bool find_untrusted(const char* path, trust_problem& reason, char* resolved = nullptr);

// Runs the same check for a file that contains code. Rejects relative paths, because another user may have
// chosen the working directory.
bool find_untrusted_code(const char* path, char* resolved, trust_problem& reason);

// These checks for callers with a C++ runtime. Both return "" for a trusted file, and otherwise the reason.
// check_code_path replaces `path` by the resolved path.
inline std::string check_trusted_path(const std::string& path) {
  trust_problem reason;
  return find_untrusted(path.c_str(), reason) ? reason.text : "";
}
inline std::string check_code_path(std::string& path) {
  trust_problem reason;
  char resolved[PATH_MAX];
  if (find_untrusted_code(path.c_str(), resolved, reason)) return reason.text;
  path = resolved;
  return "";
}

// Reads an environment variable. Always returns NULL in programs with elevated privileges (setuid,
// capabilities), because their callers must not choose which files are loaded or read.
inline const char* environment_variable(const char* name) noexcept { return secure_getenv(name); }

}  // namespace isthmus
