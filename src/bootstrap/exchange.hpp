// Typed and text forms of bootstrap::allgather for set-up. They are collective and throw the same errors.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <isthmus/plugin.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"

namespace isthmus {

template <typename Value>
std::vector<Value> gather_values(bootstrap& ranks, const Value& contribution) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(static_cast<std::size_t>(ranks.size()));
  ranks.allgather(std::as_bytes(std::span(&contribution, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// Gathers one text of any length from each rank.
inline std::vector<std::string> gather_texts(bootstrap& ranks, const std::string& contribution) {
  const auto lengths = gather_values<std::uint64_t>(ranks, contribution.size());
  const std::uint64_t max_length = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(lengths.size());
  if (max_length == 0) return texts;
  std::vector<std::byte> padded_text(max_length), all(max_length * lengths.size());
  std::memcpy(padded_text.data(), contribution.data(), contribution.size());
  ranks.allgather(padded_text, all);
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    texts[rank].assign(reinterpret_cast<const char*>(all.data() + rank * max_length), lengths[rank]);
  return texts;
}

// ---- agreement: all ranks continue, or none does (see isthmus/plugin.hpp) ----------------------------------

// Runs one rank's part of a collective step and returns the error it throws, to be sent to the peers.
template <typename Work>
std::optional<error> capture_error(Work&& work) {
  try {
    work();
  } catch (...) {
    return current_error();
  }
  return std::nullopt;
}

// The step of the vote that follows the function `create` of a backend. If a rank returns from `create` early, its
// vote meets an exchange that its peers make inside of it.
constexpr std::int32_t after_create = 0x61667472;

// Returns the lowest rank that has returned from `create` while another one is inside of it, or -1. `Votes` is indexed
// by rank. The result is the same on all ranks.
template <typename Votes>
int find_early_return(const Votes& all) {
  const auto has_returned = [](const refusal& each) { return each.step == after_create; };
  const auto first = std::ranges::find_if(all, has_returned);
  return first == all.end() || std::ranges::all_of(all, has_returned) ? -1
                                                                      : static_cast<int>(first - all.begin());
}

inline error early_return_error(int rank, const refusal& reason) {
  const std::array failed_rank{rank};
  return make_error(ISTHMUS_ERROR_REMOTE, ISTHMUS_HERE,
                    fmt::format("rank {} returned from create while other ranks exchange data inside it: {}",
                                rank, reason.is_refusal() ? reason.text : "it succeeded"),
                    "call the same exchanges on every rank, and vote with isthmus::agree")
      .with_failed_ranks(failed_rank);
}

template <typename Value>
votes<Value> gather_votes(bootstrap& ranks, const Value& contribution, const std::optional<error>& failure,
                          std::int32_t step = 0) {
  vote<Value> own_vote;
  own_vote.value = contribution;
  own_vote.step = step;
  if (failure) {
    const isthmus_error_info& info = failure->info();
    own_vote.refuse(info.status, info.message, info.hint, info.native_code);
  }
  votes<Value> all = gather_values(ranks, own_vote);
  if (step != after_create)
    if (const int rank = find_early_return(all); rank >= 0)
      throw early_return_error(rank, all[static_cast<std::size_t>(rank)]);
  return all;
}

// Throws on every rank if any rank refused with a status other than `ignored_status`. A rank that failed throws
// its own error. The others throw error (`remote_status`) "<context> on rank N: <text of that rank>". N is the failed
// rank on all ranks. If the text contains the result of an earlier vote, N is the rank of that vote.
template <typename Value>
void check_votes(int own_rank, const votes<Value>& all, const std::optional<error>& failure,
                 const std::string& context, isthmus_status remote_status = ISTHMUS_ERROR_REMOTE,
                 isthmus_status ignored_status = ISTHMUS_SUCCESS) {
  const bool is_own = failure && failure->info().status != ignored_status;
  const int rank = is_own ? own_rank : first_refusal(all, ignored_status);
  if (rank < 0) return;
  const refusal& first = all[static_cast<std::size_t>(rank)];
  const int text_rank = refusing_rank_in(first.text);
  const std::array failed_rank{text_rank >= 0 && text_rank < static_cast<int>(all.size()) ? text_rank : rank};
  if (is_own) throw failure->info().failed_ranks().empty() ? failure->with_failed_ranks(failed_rank) : *failure;
  const std::string origin = text_rank >= 0 ? "" : fmt::format(" on rank {}", rank);
  throw make_error(remote_status, ISTHMUS_HERE, fmt::format("{}{}: {}", context, origin, first.text),
                   remote_status == ISTHMUS_ERROR_REMOTE ? "see the error reported by that rank" : first.hint,
                   first.native_code)
      .with_failed_ranks(failed_rank);
}

// Gathers the votes and checks them: returns every rank's value, or throws on every rank.
template <typename Value>
std::vector<Value> agree(bootstrap& ranks, const Value& contribution, const std::optional<error>& failure,
                         const std::string& context, isthmus_status remote_status = ISTHMUS_ERROR_REMOTE) {
  const votes<Value> all = gather_votes(ranks, contribution, failure);
  check_votes(ranks.rank(), all, failure, context, remote_status);
  std::vector<Value> values;
  for (const vote<Value>& ballot : all) values.push_back(ballot.value);
  return values;
}

}  // namespace isthmus
