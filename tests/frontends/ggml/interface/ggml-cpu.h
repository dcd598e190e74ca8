// The functions of ggml's CPU backend that the probe uses, as ggml-backend.h.
#pragma once

#include "ggml-backend.h"

extern "C" {
ggml_backend_reg_t ggml_backend_cpu_reg();
ggml_backend_buffer_type_t ggml_backend_cpu_buffer_type();
void ggml_backend_cpu_set_n_threads(ggml_backend_t backend, int threads);
}
