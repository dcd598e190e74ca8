// Ownership and permission checks for files that contain code. These functions are called before Isthmus loads
// a plug-in, a library with an explicit path, or a configuration file that names such code.
#pragma once

#include <cstdlib>
#include <string>

namespace isthmus {

// Returns "" if only trusted users can replace the file. Otherwise returns a message with the file or folder,
// its owner, its mode and the rule.
//
// Trusted users are root, the user of this process, and users who can modify the file that contains this code:
// its owner and, if a group or everyone can write to the file or its folder, these users. After links have been
// resolved, the file and all its parent folders must be owned by trusted users and must not be writable by
// others. Within a sticky folder (/tmp), it suffices that a trusted user owns the next path component.
std::string check_trusted_path(const std::string& path);

// Runs the same check for a file that contains code. Rejects relative paths, because another user may have
// chosen the working directory. On success, `path` is replaced by the resolved path that was checked.
std::string check_code_path(std::string& path);

// Reads an environment variable. Always returns NULL in programs with elevated privileges (setuid,
// capabilities), because their callers must not choose which files are loaded or read.
inline const char* environment_variable(const char* name) noexcept { return secure_getenv(name); }

}  // namespace isthmus
