// The mismatch check (`check = true`, ISTHMUS_CHECK=1): before a call starts, the ranks compare their calls, so
// that no data moves between calls that do not match.
#include <fmt/ranges.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/tables.hpp"
#include "base/text.hpp"
#include "bootstrap/exchange.hpp"
#include "core/communicator.hpp"
#include "recorder/diagnosis.hpp"

namespace isthmus {
namespace {

// Lists each distinct text with its ranks, the most common text first.
using text_groups = std::vector<std::pair<std::string, std::vector<int>>>;

text_groups group_by_text(const std::vector<std::vector<std::string>>& calls, std::size_t line) {
  text_groups all;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const std::string text = line < calls[rank].size() ? calls[rank][line] : "nothing";
    auto group = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.first == text; });
    if (group == all.end()) group = all.insert(all.end(), {text, {}});
    group->second.push_back(static_cast<int>(rank));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return all;
}

// Returns the properties of a call that must be equal on all ranks, as text for error messages. `path` has
// the form "backend:algorithm".
std::string signature_text(const isthmus_operation& operation, int size, const std::string& path) {
  const collective_row& row = row_of(operation.collective);
  std::string count;
  if (has_equal_count(row)) count = fmt::format("{}", operation.count);
  if (const std::uint64_t* const counts = shared_counts(operation))
    count = fmt::format("[{}]", fmt::join(counts, counts + size, " "));
  const std::string arguments =
      recorder::arguments_text(row, operation.datatype, count, operation.op, operation.root);
  std::string text = row.name + (arguments.empty() ? "" : fmt::format(" ({})", arguments));
  if (const isthmus_rmsnorm* const norm = operation.rmsnorm)
    text +=
        fmt::format(" with RMSNorm (hidden {}, output {}{}, eps {}{})", norm->hidden,
                    isthmus_datatype_name(norm->output), norm->scales == nullptr ? "" : " with scales of rows",
                    norm->eps, norm->round_before_weight == 0 ? "" : ", round_before_weight");
  if (const isthmus_product* const product = operation.product)
    text += fmt::format(" of products ({} x {})", product->rows, product->columns);
  return text + " by " + path;
}

}  // namespace

void communicator::compare_calls(const std::string& contribution) {
  const auto texts = gather_texts(*m_control, contribution);
  if (std::all_of(texts.begin(), texts.end(), [&](const std::string& each) { return each == contribution; }))
    return;
  std::vector<std::vector<std::string>> calls;
  std::size_t max_lines = 0;
  for (const std::string& text : texts) {
    calls.push_back(split_lines(text));
    max_lines = std::max(max_lines, calls.back().size());
  }
  for (std::size_t line = 0; line < max_lines; ++line) {
    const text_groups all = group_by_text(calls, line);
    if (all.size() == 1) continue;
    std::string differences;
    for (std::size_t i = 1; i < all.size(); ++i)
      differences +=
          fmt::format("{}{} called {}", i == 1 ? "" : ", ", recorder::list_of(all[i].second), all[i].first);
    throw make_error(ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
                     fmt::format("ranks make different calls: {}, but {} called {}; no data was moved",
                                 differences, recorder::list_of(all[0].second), all[0].first),
                     "call the same collectives in the same order on every rank, with equal datatypes, counts, "
                     "operations and roots");
  }
}

void communicator::compare(const backend_instance& backend, const isthmus_operation* operations,
                           const int* algorithms, std::size_t n) {
  std::string calls;
  const isthmus_operation* first = nullptr;
  for (std::size_t i = 0; i < n; ++i) {
    if (is_point_to_point(operations[i].collective)) continue;  // send and recv differ by design
    if (first == nullptr) first = &operations[i];
    const bool has_algorithm = algorithms[i] != ISTHMUS_ANY_ALGORITHM;
    const std::string path = backend.name() + (has_algorithm ? ":" : "") +
                             (has_algorithm ? backend.functions().algorithms[algorithms[i]] : "");
    calls += signature_text(operations[i], m_ranks.size, path) + "\n";
  }
  if (first == nullptr) return;
  try {
    m_recorder.begin_check(*first);
    compare_texts(calls);
  } catch (const error& failure) {
    if (failure.info().status != ISTHMUS_ERROR_MISMATCH) abort(failure.info());
    throw annotate(failure, *first);
  }
}

}  // namespace isthmus
