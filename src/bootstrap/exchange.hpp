// Typed and text forms of bootstrap::allgather for set-up. Collective like it; they throw what it throws.
#pragma once

#include <isthmus/plugin.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"

namespace isthmus {

template <typename Value>
std::vector<Value> gather_values(bootstrap& ranks, const Value& mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(static_cast<std::size_t>(ranks.size()));
  ranks.allgather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// One text from each rank, of any length.
std::vector<std::string> gather_texts(bootstrap& ranks, const std::string& mine);

// ---- all ranks go on, or none: isthmus/plugin.hpp ----------------------------------------------------------

// What one rank's part of a step throws, if it does: for the others to hear of.
template <typename Work>
std::optional<error> capture_error(Work&& work) {
  try {
    work();
  } catch (...) {
    return current_error();
  }
  return std::nullopt;
}

template <typename Value>
votes<Value> gather_votes(bootstrap& ranks, const Value& mine, const std::optional<error>& failure) {
  vote<Value> own;
  own.value = mine;
  if (failure) {
    const isthmus_error_info& info = failure->info();
    own.refuse(info.status, info.message, info.hint, info.native_code);
  }
  return gather_values(ranks, own);
}

// Throws on every rank where some rank refuses with another status than `ignored_status`: a rank that failed
// itself throws its own failure, the others error (`elsewhere`) "<what> on rank N: <that rank's text>".
template <typename Value>
void check_votes(const votes<Value>& all, const std::optional<error>& failure, const std::string& context,
                 isthmus_status remote_status = ISTHMUS_ERROR_REMOTE,
                 isthmus_status ignored_status = ISTHMUS_SUCCESS) {
  const int rank = first_refusal(all, ignored_status);
  if (rank < 0) return;
  if (failure && failure->info().status != ignored_status) throw error(*failure);
  const refusal& first = all[static_cast<std::size_t>(rank)];
  throw make_error(remote_status, ISTHMUS_HERE, fmt::format("{} on rank {}: {}", context, rank, first.text),
                   remote_status == ISTHMUS_ERROR_REMOTE ? "see the error that this rank reports" : first.hint,
                   first.native_code);
}

// Both: every rank's value, or an error on every rank.
template <typename Value>
std::vector<Value> agree(bootstrap& ranks, const Value& mine, const std::optional<error>& failure,
                         const std::string& context, isthmus_status remote_status = ISTHMUS_ERROR_REMOTE) {
  const votes<Value> all = gather_votes(ranks, mine, failure);
  check_votes(all, failure, context, remote_status);
  std::vector<Value> values;
  for (const vote<Value>& ballot : all) values.push_back(ballot.value);
  return values;
}

}  // namespace isthmus
