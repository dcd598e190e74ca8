// Makes nccl_program a program with its own global operators.
#include "../own_operators.hpp"
