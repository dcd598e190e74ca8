// Loads a model with llama.cpp, computes a fixed prompt and 32 greedy tokens, and prints one line of JSON: the
// tokens and the mean negative log-likelihood of the prompt.
//
//   probe MODEL cpu|gpu N     N devices, split by tensor if N > 1
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu_devices.hpp"
#include "ggml-backend.h"
#include "llama.h"

namespace {

constexpr int prompt_tokens = 160;
constexpr int greedy_tokens = 32;

[[noreturn]] void fail(const char* message) {
  std::fprintf(stderr, "probe: %s\n", message);
  std::exit(1);
}

void log_errors(ggml_log_level level, const char* text, void*) {
  if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT) std::fputs(text, stderr);
}

std::vector<ggml_backend_dev_t> devices(const char* kind, std::size_t n) {
  std::vector<ggml_backend_dev_t> all_devices;
  if (std::strcmp(kind, "cpu") == 0) {
    if (n > 1)
      all_devices = make_cpu_devices(n);  // one device: no list is passed, and the CPU backend is used
    else
      return {nullptr};
  } else if (std::strcmp(kind, "gpu") == 0) {
    for (std::size_t i = 0; i < ggml_backend_dev_count() && all_devices.size() < n; ++i)
      if (ggml_backend_dev_type(ggml_backend_dev_get(i)) == GGML_BACKEND_DEVICE_TYPE_GPU)
        all_devices.push_back(ggml_backend_dev_get(i));
  }
  if (all_devices.size() != n) fail("not enough devices of this kind; use cpu or gpu");
  all_devices.push_back(nullptr);
  return all_devices;
}

double log_likelihood(const float* logits, int vocabulary, llama_token token) {
  const float max_logit = *std::max_element(logits, logits + vocabulary);
  double sum = 0;
  for (int i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(logits[i]) - max_logit);
  return static_cast<double>(logits[token]) - max_logit - std::log(sum);
}

llama_token best(const float* logits, int vocabulary) {
  return static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits);
}

// A fixed sequence of tokens from a linear congruential generator.
std::vector<llama_token> make_prompt(int vocabulary) {
  std::vector<llama_token> prompt;
  std::uint32_t state = 12345;
  for (int i = 0; i < prompt_tokens; ++i) {
    state = state * 1664525u + 1013904223u;
    prompt.push_back(3 + static_cast<llama_token>((state >> 8) % static_cast<std::uint32_t>(vocabulary - 3)));
  }
  return prompt;
}

double compute_prompt(llama_context* context, const std::vector<llama_token>& prompt, int vocabulary) {
  llama_batch batch = llama_batch_init(prompt_tokens, 0, 1);
  batch.n_tokens = prompt_tokens;
  for (int i = 0; i < prompt_tokens; ++i) {
    batch.token[i] = prompt[static_cast<std::size_t>(i)];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  if (llama_decode(context, batch) != 0) fail("the prompt could not be computed");
  double sum = 0;
  for (int i = 0; i + 1 < prompt_tokens; ++i)
    sum +=
        log_likelihood(llama_get_logits_ith(context, i), vocabulary, prompt[static_cast<std::size_t>(i) + 1]);
  llama_batch_free(batch);
  return -sum / (prompt_tokens - 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) fail("usage: probe MODEL cpu|gpu N");
  llama_log_set(log_errors, nullptr);
  llama_backend_init();
  ggml_backend_load_all();
  const int n = std::atoi(argv[3]);
  auto selected_devices = devices(argv[2], static_cast<std::size_t>(n));

  llama_model_params model_parameters = llama_model_default_params();
  model_parameters.devices = selected_devices.data();
  model_parameters.n_gpu_layers = 999;
  model_parameters.split_mode = n > 1 ? LLAMA_SPLIT_MODE_TENSOR : LLAMA_SPLIT_MODE_NONE;
  llama_model* model = llama_model_load_from_file(argv[1], model_parameters);
  if (model == nullptr) fail("the model could not be loaded");

  llama_context_params context_parameters = llama_context_default_params();
  context_parameters.n_ctx = 512;
  context_parameters.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  context_parameters.n_threads = context_parameters.n_threads_batch = 2;
  llama_context* context = llama_init_from_model(model, context_parameters);
  if (context == nullptr) fail("the context could not be created");

  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  const double loss = compute_prompt(context, make_prompt(vocabulary), vocabulary);
  std::printf("{\"loss\": %.9f, \"tokens\": [", loss);
  llama_token token = best(llama_get_logits_ith(context, prompt_tokens - 1), vocabulary);
  for (int i = 0; i < greedy_tokens; ++i) {
    std::printf("%s%d", i == 0 ? "" : ", ", token);
    if (llama_decode(context, llama_batch_get_one(&token, 1)) != 0) fail("a token could not be computed");
    token = best(llama_get_logits_ith(context, -1), vocabulary);
  }
  std::printf("]}\n");
  llama_free(context);
  llama_model_free(model);
  llama_backend_free();
  return 0;
}
