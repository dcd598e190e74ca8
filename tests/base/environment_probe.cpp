// Exits with 1 when the core would follow ISTHMUS_PLUGIN_PATH here, else with 0.
#include "base/trust.hpp"

int main() { return isthmus::environment_variable("ISTHMUS_PLUGIN_PATH") != nullptr ? 1 : 0; }
