#include "frontends/ggml/tensor_layout.hpp"

#include <string_view>
#include <vector>

namespace isthmus::ggml {
namespace {

using word_list = std::vector<std::int32_t>;

// The words between two tensors that were made one after the other: the first tensor, and a little more of
// the pool that both are in.
word_list words_of(const ggml_tensor* first, std::ptrdiff_t bytes) {
  word_list words(static_cast<std::size_t>(bytes) / sizeof(std::int32_t));
  std::memcpy(words.data(), first, words.size() * sizeof(std::int32_t));
  return words;
}

// Where exactly one word differs; nothing where none or several do.
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
    m_reason = "ggml exports no ggml_init or ggml_free";
    return;
  }
  constexpr std::size_t pool_bytes = std::size_t{1} << 20;
  ggml_context* scratch = make({pool_bytes, nullptr, true});
  if (scratch == nullptr) {
    m_reason = "ggml_init gave no context";
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
    m_reason = "ggml exports no ggml_type_name or ggml_new_tensor_1d";
    return;
  }
  // The numbers of a file format, so they never change; the names are asked for all the same.
  constexpr std::int32_t numbers[] = {0, 1, 30};
  constexpr std::string_view names[] = {"f32", "f16", "bf16"};
  for (int i = 0; i < 3; ++i) {
    const char* name = type_name(numbers[i]);
    if (name == nullptr || names[i] != name || word(make_tensor(scratch, numbers[i], 1), 0) != numbers[i]) {
      m_reason = "ggml's tensors do not begin with the type " + std::string(names[i]) + " as expected";
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
    m_reason = "ggml lacks a function that tells where a tensor's flags are";
    return;
  }
  ggml_tensor* leaf = make_tensor(scratch, m_types[0], 1);
  const ggml_tensor* next = make_tensor(scratch, m_types[0], 1);
  const std::ptrdiff_t bytes = reinterpret_cast<const char*>(next) - reinterpret_cast<const char*>(leaf);
  constexpr std::ptrdiff_t max_bytes = 4096;
  if (bytes <= 0 || bytes > max_bytes) {
    m_reason = "ggml places tensors in an unknown way";
    return;
  }
  const word_list without_flags = words_of(leaf, bytes);
  set_input(leaf);
  const word_list as_input = words_of(leaf, bytes);
  set_output(leaf);
  const word_list as_output = words_of(leaf, bytes);
  const auto first = single_difference(without_flags, as_input), second = single_difference(as_input, as_output);
  if (!first || first != second || without_flags[*first] != 0) {
    m_reason = "where ggml keeps a tensor's flags could not be found";
    return;
  }
  m_flags = *first * sizeof(std::int32_t);
  // An operation that becomes part of a graph is one to compute: what its flags gain is the flag for that.
  ggml_tensor* node = copy(scratch, leaf);
  const std::int32_t before = word(node, m_flags);
  expand(make_graph(scratch, 8, false), node);
  m_compute_flag = word(node, m_flags) ^ before;
  if (!is_one_bit(m_compute_flag) || before != 0)
    m_reason = "this ggml does not mark the tensors that are to be computed";
}

}  // namespace isthmus::ggml
