// Compiles the kernels for the simulated devices.
#include "backends/p2p/matmul_allreduce.cu"
