// Exits with 1 if the core would use ISTHMUS_PLUGIN_PATH in this process, otherwise with 0.
#include "base/trust.hpp"

int main() { return isthmus::environment_variable("ISTHMUS_PLUGIN_PATH") != nullptr ? 1 : 0; }
