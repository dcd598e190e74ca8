// The part of llama.cpp's C interface that the probe uses. Fields that it does not use are bytes.
#pragma once

#include <cstdint>

#include "ggml-backend.h"

struct llama_model;
struct llama_context;
struct llama_vocab;
using llama_token = std::int32_t;

enum llama_split_mode : std::int32_t { LLAMA_SPLIT_MODE_NONE = 0, LLAMA_SPLIT_MODE_TENSOR = 3 };
enum llama_flash_attn_type : std::int32_t { LLAMA_FLASH_ATTN_TYPE_ENABLED = 1 };

struct llama_model_params {
  ggml_backend_dev_t* devices;
  char other[8];
  std::int32_t n_gpu_layers;
  llama_split_mode split_mode;
  char more[56];
};
static_assert(sizeof(llama_model_params) == 80);

struct llama_context_params {
  std::uint32_t n_ctx;
  char other[24];
  std::int32_t n_threads, n_threads_batch;
  char more[16];
  llama_flash_attn_type flash_attn_type;
  char rest[112];
};
static_assert(sizeof(llama_context_params) == 168);

struct llama_batch {
  std::int32_t n_tokens;
  llama_token* token;
  float* embd;
  std::int32_t* pos;
  std::int32_t* n_seq_id;
  std::int32_t** seq_id;
  std::int8_t* logits;
};

extern "C" {
void llama_log_set(void (*log)(ggml_log_level, const char*, void*), void* data);
void llama_backend_init();
void llama_backend_free();
llama_model_params llama_model_default_params();
llama_context_params llama_context_default_params();
llama_model* llama_model_load_from_file(const char* path, llama_model_params parameters);
llama_context* llama_init_from_model(llama_model* model, llama_context_params parameters);
void llama_model_free(llama_model* model);
void llama_free(llama_context* context);
const llama_vocab* llama_model_get_vocab(const llama_model* model);
std::int32_t llama_vocab_n_tokens(const llama_vocab* vocabulary);
llama_batch llama_batch_init(std::int32_t tokens, std::int32_t embeddings, std::int32_t sequences);
llama_batch llama_batch_get_one(llama_token* tokens, std::int32_t count);
void llama_batch_free(llama_batch batch);
std::int32_t llama_decode(llama_context* context, llama_batch batch);
float* llama_get_logits_ith(llama_context* context, std::int32_t index);
}
