// The implementation of fmt, compiled once from its headers. Debian has no static library of fmt, and the shared one
// allocates strings with the program's operator new, which our static C++ runtime then frees. The flag
// -fkeep-inline-functions emits every function, so this file names none and does not depend on the version of fmt.
#define FMT_HEADER_ONLY
#include <fmt/format.h>
