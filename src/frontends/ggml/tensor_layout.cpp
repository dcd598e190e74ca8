#include <string_view>
#include <vector>

#include "frontends/ggml/ggml_library.hpp"

namespace isthmus::ggml {
namespace {

using word_list = std::vector<std::int32_t>;

// Returns the words between two tensors that were created one after the other: the first tensor and an adjacent
// part of their pool.
word_list words_of(const ggml_tensor* first, std::ptrdiff_t bytes) {
  word_list words(static_cast<std::size_t>(bytes) / sizeof(std::int32_t));
  std::memcpy(words.data(), first, words.size() * sizeof(std::int32_t));
  return words;
}

// Returns the position of the only word that differs, or nothing if no word or several words differ.
std::optional<std::size_t> single_difference(const word_list& before, const word_list& after) {
  std::optional<std::size_t> position;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    if (position) return std::nullopt;
    position = i;
  }
  return position;
}

bool is_one_bit(std::int32_t flag) { return flag > 0 && (flag & (flag - 1)) == 0; }

}  // namespace

tensor_layout::tensor_layout(const loaded_library& ggml) {
  ggml_context* (*make)(context_parameters);
  void (*release)(ggml_context*);
  if (!ggml.find("ggml_init", make) || !ggml.find("ggml_free", release)) {
    m_reason = "it does not export ggml_init or ggml_free";
    return;
  }
  constexpr std::size_t pool_bytes = std::size_t{1} << 20;
  ggml_context* scratch = make({pool_bytes, nullptr, true});
  if (scratch == nullptr) {
    m_reason = "ggml_init returned no context";
    return;
  }
  find_types(ggml, scratch);
  if (m_reason.empty()) find_flags(ggml, scratch);
  release(scratch);
}

void tensor_layout::find_types(const loaded_library& ggml, ggml_context* scratch) {
  const char* (*type_name)(int);
  ggml_tensor* (*make_tensor)(ggml_context*, int, std::int64_t);
  if (!ggml.find("ggml_type_name", type_name) || !ggml.find("ggml_new_tensor_1d", make_tensor)) {
    m_reason = "it does not export ggml_type_name or ggml_new_tensor_1d";
    return;
  }
  // These numbers are part of a file format and never change. The names are checked anyway.
  constexpr std::int32_t numbers[] = {0, 1, 30};
  constexpr std::string_view names[] = {"f32", "f16", "bf16"};
  for (int i = 0; i < 3; ++i) {
    const char* name = type_name(numbers[i]);
    if (name == nullptr || names[i] != name || word(make_tensor(scratch, numbers[i], 1), 0) != numbers[i]) {
      m_reason = "its tensors do not start with the expected type " + std::string(names[i]);
      return;
    }
    m_types[i] = numbers[i];
  }
}

void tensor_layout::find_flags(const loaded_library& ggml, ggml_context* scratch) {
  ggml_tensor* (*make_tensor)(ggml_context*, int, std::int64_t);
  ggml_tensor* (*copy)(ggml_context*, ggml_tensor*);
  void (*set_input)(ggml_tensor*);
  void (*set_output)(ggml_tensor*);
  ggml_graph* (*make_graph)(ggml_context*, std::size_t, bool);
  void (*expand)(ggml_graph*, ggml_tensor*);
  if (!ggml.find("ggml_new_tensor_1d", make_tensor) || !ggml.find("ggml_dup", copy) ||
      !ggml.find("ggml_set_input", set_input) || !ggml.find("ggml_set_output", set_output) ||
      !ggml.find("ggml_new_graph_custom", make_graph) || !ggml.find("ggml_build_forward_expand", expand)) {
    m_reason = "it lacks a function that is needed to find the flags of a tensor";
    return;
  }
  ggml_tensor* leaf = make_tensor(scratch, m_types[0], 1);
  const ggml_tensor* next = make_tensor(scratch, m_types[0], 1);
  const std::ptrdiff_t bytes = reinterpret_cast<const char*>(next) - reinterpret_cast<const char*>(leaf);
  constexpr std::ptrdiff_t max_bytes = 4096;
  if (bytes <= 0 || bytes > max_bytes) {
    m_reason = "the distance between its tensors is unexpected";
    return;
  }
  const word_list plain_words = words_of(leaf, bytes);
  set_input(leaf);
  const word_list input_words = words_of(leaf, bytes);
  set_output(leaf);
  const word_list output_words = words_of(leaf, bytes);
  const auto first = single_difference(plain_words, input_words),
             second = single_difference(input_words, output_words);
  if (!first || first != second || plain_words[*first] != 0) {
    m_reason = "the flags of its tensors were not found";
    return;
  }
  m_flags = *first * sizeof(std::int32_t);
  // Adding an operation to a graph sets its compute flag.
  ggml_tensor* node = copy(scratch, leaf);
  const std::int32_t before = word(node, m_flags);
  expand(make_graph(scratch, 8, false), node);
  m_compute_flag = word(node, m_flags) ^ before;
  if (!is_one_bit(m_compute_flag) || before != 0) m_reason = "it does not mark the tensors that it computes";
}

}  // namespace isthmus::ggml
