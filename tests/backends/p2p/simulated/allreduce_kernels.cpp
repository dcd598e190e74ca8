// Compiles the kernels for the simulated devices.
#include "backends/p2p/allreduce.cu"
