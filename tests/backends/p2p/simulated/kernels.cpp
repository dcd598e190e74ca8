// Compiles the kernels for the simulated devices.
#include "backends/p2p/combine.cu"
#include "backends/p2p/exchange.cu"
