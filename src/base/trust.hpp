// Whose files code may be loaded from. Used before every plug-in, library by path and configuration that names
// them.
#pragma once

#include <cstdlib>
#include <string>

namespace isthmus {

// "" when nobody but the trusted can put something else there; else one sentence that names the file or folder,
// its owner, its mode and the rule. Trusted are root, the user of this process, and whoever can change the file
// that holds this code already: its owner and, where it or its folder is writable by a group or by all, these.
// The file with all links resolved and every folder above it must be owned by them and writable by nobody else;
// in a sticky folder (/tmp) it is enough that they own the next part.
std::string check_trusted_path(const std::string& path);

// The same for a file that was named, for code: a relative path leads through the working directory, which
// others may have chosen, and is refused. `path` becomes the one without links, which is the one that was
// looked at.
std::string check_code_path(std::string& path);

// A variable of the environment; NULL in programs that run with more rights than their caller has (setuid,
// capabilities), where the caller must not choose what is loaded or read.
inline const char* environment_variable(const char* name) noexcept { return secure_getenv(name); }

}  // namespace isthmus
