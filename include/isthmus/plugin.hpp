// For plug-ins in C++, over isthmus/backend.h and nothing else.
//
// All ranks go on, or none. Each rank votes: a value, or a refusal that says why it has none. All ranks then
// see all votes, so all come to the same verdict: every value, or the refusal of the first rank that refused.
//
//   isthmus_status create(const isthmus_backend_context* context, void** state) {
//     isthmus::vote<int> mine;                  // trivially copyable, the same type on all ranks
//     if (has_device()) mine.value = device();
//     else mine.refuse(ISTHMUS_ERROR_UNSUPPORTED, "it has no such device", "use another backend");
//     isthmus::votes<int> all;                  // by rank
//     const isthmus_status agreed = isthmus::agree(*context, "library.cpp:create", mine, all);
//     if (agreed != ISTHMUS_SUCCESS) return agreed;  // on every rank, with the first refusal reported
//
// `agree` and `gather_votes` are collective over the context's ranks and belong into create, split and
// register_block only, like context->allgather. They may throw std::bad_alloc.
#ifndef ISTHMUS_PLUGIN_HPP
#define ISTHMUS_PLUGIN_HPP

#include <isthmus/backend.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace isthmus {

// Why a rank can't go on. Plain bytes, as votes travel; texts are cut where they do not fit.
struct refusal {
  std::int32_t status = ISTHMUS_SUCCESS;  // SUCCESS: it can
  std::int32_t reserved = 0;
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

// Where a rank has nothing to say but that it can go on.
struct no_value {};

template <typename Value = no_value>
struct vote : refusal {
  Value value{};
};

// By rank.
template <typename Value = no_value>
using votes = std::vector<vote<Value>>;

// The first rank that refuses, or -1. Refusals of status `ignored_status` are passed over.
template <typename Value>
int first_refusal(const votes<Value>& all_votes, isthmus_status ignored_status = ISTHMUS_SUCCESS) {
  for (std::size_t rank = 0; rank < all_votes.size(); ++rank)
    if (all_votes[rank].is_refusal() && all_votes[rank].status != ignored_status) return static_cast<int>(rank);
  return -1;
}

// "rank 2: no such device", or "" where no rank refuses.
template <typename Value>
std::string refusal_text(const votes<Value>& all_votes) {
  const int rank = first_refusal(all_votes);
  if (rank < 0) return {};
  return "rank " + std::to_string(rank) + ": " + all_votes[static_cast<std::size_t>(rank)].text;
}

// ---- for backends -------------------------------------------------------------------------------------

// An option of this backend's that is "true" or "false"; `result` stays where it is not given. Returns "" or
// what is wrong with it.
inline std::string read_flag(const isthmus_backend_context& context, const char* key, bool& result) {
  const char* const text = context.option(context.runtime, key);
  if (text == nullptr) return {};
  const bool is_true = std::strcmp(text, "true") == 0;
  if (!is_true && std::strcmp(text, "false") != 0)
    return std::string("option ") + key + " = \"" + text + "\" must be true or false";
  result = is_true;
  return {};
}

// A failure, and the ranks that it is due to: context->fail_with_ranks, or context->fail where the runtime is older.
inline isthmus_status fail_with_ranks(const isthmus_backend_context& context, const std::vector<int>& ranks,
                              isthmus_status status, std::int64_t native_code, const char* location,
                              const char* hint, const std::string& text) {
  constexpr std::size_t end = offsetof(isthmus_backend_context, fail_with_ranks) + sizeof context.fail_with_ranks;
  if (context.struct_bytes < end || context.fail_with_ranks == nullptr)
    return context.fail(context.runtime, status, native_code, location, hint, "%s", text.c_str());
  return context.fail_with_ranks(context.runtime, ranks.data(), ranks.size(), status, native_code, location, hint, "%s",
                         text.c_str());
}

// Collective. `all` gets every rank's vote. Fails only where the ranks can't talk to each other, which the
// runtime has then reported.
template <typename Value>
isthmus_status gather_votes(const isthmus_backend_context& context, const vote<Value>& own_vote,
                            votes<Value>& all_votes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  all_votes.resize(static_cast<std::size_t>(context.size));
  return context.allgather(context.runtime, &own_vote, all_votes.data(), sizeof own_vote);
}

// Collective. SUCCESS on every rank, or on every rank the first refusal's status, reported with its rank, text,
// native code and hint.
template <typename Value>
isthmus_status agree(const isthmus_backend_context& context, const char* location, const vote<Value>& own_vote,
                     votes<Value>& all_votes) {
  if (const isthmus_status status = gather_votes(context, own_vote, all_votes); status != ISTHMUS_SUCCESS) return status;
  const int rank = first_refusal(all_votes);
  if (rank < 0) return ISTHMUS_SUCCESS;
  const refusal& first = all_votes[static_cast<std::size_t>(rank)];
  return context.fail(context.runtime, static_cast<isthmus_status>(first.status), first.native_code, location,
                      first.hint[0] != '\0' ? first.hint : nullptr, "rank %d: %s", rank, first.text);
}

}  // namespace isthmus

#endif
