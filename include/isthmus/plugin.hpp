// Helpers for plug-ins in C++. This header depends only on isthmus/backend.h.
//
// Votes ensure that either all ranks continue or none does. Each rank votes with a value, or with a refusal and
// its reason. All ranks then have all votes and reach the same decision: to continue, or to report the refusal
// of the lowest rank that refused.
//
//   isthmus_status create(const isthmus_backend_context* context, void** state) {
//     isthmus::vote<int> own_vote;              // trivially copyable, the same type on all ranks
//     if (has_device()) own_vote.value = device();
//     else own_vote.refuse(ISTHMUS_ERROR_UNSUPPORTED, "it has no such device", "use another backend");
//     isthmus::votes<int> all_votes;            // indexed by rank
//     const isthmus_status status = isthmus::agree(*context, "library.cpp:create", own_vote, all_votes);
//     if (status != ISTHMUS_SUCCESS) return status;  // on all ranks, after the first refusal was reported
//
// agree() and gather_votes() are collective over the ranks of the context. Like context->allgather, they may
// only be called in create, split and register_block.
// Errors: they may throw std::bad_alloc.
#ifndef ISTHMUS_PLUGIN_HPP
#define ISTHMUS_PLUGIN_HPP

#include <isthmus/backend.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace isthmus {

// The reason why a rank cannot continue. Trivially copyable, because votes are sent as bytes.
// Texts are truncated.
struct refusal {
  std::int32_t status = ISTHMUS_SUCCESS;  // SUCCESS: no refusal
  std::int32_t step = 0;                  // set by the runtime
  std::int64_t native_code = 0;
  char text[320] = {};
  char hint[160] = {};

  bool is_refusal() const { return status != ISTHMUS_SUCCESS; }
  void refuse(isthmus_status error, const std::string& message, const std::string& hint_text = {},
              std::int64_t native_error = 0) {
    status = error;
    native_code = native_error;
    copy_text(text, message);
    copy_text(hint, hint_text);
  }

 private:
  template <std::size_t Capacity>
  static void copy_text(char (&destination)[Capacity], const std::string& source) {
    const std::size_t length = source.size() < Capacity ? source.size() : Capacity - 1;
    std::memcpy(destination, source.data(), length);
    destination[length] = '\0';
  }
};

// The value type of a vote that only states whether the rank can continue.
struct no_value {};

template <typename Value = no_value>
struct vote : refusal {
  Value value{};
};

// The votes of all ranks, indexed by rank.
template <typename Value = no_value>
using votes = std::vector<vote<Value>>;

// Returns the lowest rank that refuses, or -1. Refusals with status `ignored_status` are skipped.
template <typename Value>
int first_refusal(const votes<Value>& all_votes, isthmus_status ignored_status = ISTHMUS_SUCCESS) {
  for (std::size_t rank = 0; rank < all_votes.size(); ++rank)
    if (all_votes[rank].is_refusal() && all_votes[rank].status != ignored_status) return static_cast<int>(rank);
  return -1;
}

// Returns the rank with which the text begins, as in the results of refusal_text, or -1.
inline int refusing_rank_in(std::string_view text) {
  constexpr std::string_view prefix = "rank ";
  if (!text.starts_with(prefix)) return -1;
  const char* const end = text.data() + text.size();
  int rank = -1;
  const auto [position, problem] = std::from_chars(text.data() + prefix.size(), end, rank);
  return problem == std::errc() && position != end && *position == ':' ? rank : -1;
}

// Returns "rank 2: no such device", for example, or "" if no rank refuses. If the rank only passes on the result of an
// earlier vote, the text names the rank of that vote.
template <typename Value>
std::string refusal_text(const votes<Value>& all_votes) {
  const int rank = first_refusal(all_votes);
  if (rank < 0) return {};
  const std::string text = all_votes[static_cast<std::size_t>(rank)].text;
  return refusing_rank_in(text) >= 0 ? text : "rank " + std::to_string(rank) + ": " + text;
}

// ---- for backends -------------------------------------------------------------------------------------

// Reads an option of this backend that must be "true" or "false". `result` is unchanged if the option is not
// set. Returns "" or an error message.
inline std::string read_flag(const isthmus_backend_context& context, const char* key, bool& result) {
  const char* const text = context.option(context.runtime, key);
  if (text == nullptr) return {};
  const bool is_true = std::strcmp(text, "true") == 0;
  if (!is_true && std::strcmp(text, "false") != 0)
    return std::string("option ") + key + " = \"" + text + "\" must be true or false";
  result = is_true;
  return {};
}

// Reports a failure and the ranks that caused it through context->fail_with_ranks.
inline isthmus_status fail_with_ranks(const isthmus_backend_context& context, const std::vector<int>& ranks,
                                      isthmus_status status, std::int64_t native_code, const char* location,
                                      const char* hint, const std::string& text) {
  return context.fail_with_ranks(context.runtime, ranks.data(), ranks.size(), status, native_code, location,
                                 hint, "%s", text.c_str());
}

// Gathers the votes of all ranks in `all_votes`. Collective. Fails only if the ranks cannot communicate. The
// runtime has then already reported the failure.
template <typename Value>
isthmus_status gather_votes(const isthmus_backend_context& context, const vote<Value>& own_vote,
                            votes<Value>& all_votes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  all_votes.resize(static_cast<std::size_t>(context.size));
  return context.allgather(context.runtime, &own_vote, all_votes.data(), sizeof own_vote);
}

// Gathers the votes and decides. Collective. If no rank refuses, returns SUCCESS on all ranks. Otherwise,
// reports the first refusal (rank, text, native code, hint) with its rank as the failed rank, and returns its status
// on all ranks.
template <typename Value>
isthmus_status agree(const isthmus_backend_context& context, const char* location, const vote<Value>& own_vote,
                     votes<Value>& all_votes) {
  if (const isthmus_status status = gather_votes(context, own_vote, all_votes); status != ISTHMUS_SUCCESS)
    return status;
  const int rank = first_refusal(all_votes);
  if (rank < 0) return ISTHMUS_SUCCESS;
  const refusal& first = all_votes[static_cast<std::size_t>(rank)];
  const std::string text = refusal_text(all_votes);
  return fail_with_ranks(context, {refusing_rank_in(text)}, static_cast<isthmus_status>(first.status),
                         first.native_code, location, first.hint[0] != '\0' ? first.hint : nullptr, text);
}

}  // namespace isthmus

#endif
