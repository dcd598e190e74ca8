#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"

namespace isthmus {
namespace {

class user_store final : public store {
 public:
  explicit user_store(const isthmus_store_table* table) {
    std::memcpy(&m_table, table, std::min(table->struct_bytes, sizeof m_table));
  }

  std::string name() const override { return "the user's store"; }

  void set(const std::string& key, std::span<const std::byte> value) override {
    check_set(key, m_table.set(m_table.context, key.c_str(), value.data(), value.size()));
  }

  void set_if_absent(const std::string& key, std::span<const std::byte> value) override {
    if (m_table.set_if_absent == nullptr)
      throw make_error(
          ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
          "communicator_shrink: the user's store has no set_if_absent, which the survivor protocol needs",
          "set isthmus_store_table::set_if_absent");
    check_set(key, m_table.set_if_absent(m_table.context, key.c_str(), value.data(), value.size()));
  }

  void get(const std::string& key, std::span<std::byte> value, double timeout_s) override {
    const int result = m_table.get(m_table.context, key.c_str(), value.data(), value.size(), timeout_s);
    if (result == 0) return;
    if (result == 1)
      throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                       fmt::format("store key {} was not set within {} s", key, timeout_s));
    throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                     fmt::format("get({}) of the user's store returned {}", key, result),
                     "see the store's own error", result);
  }

 private:
  static void check_set(const std::string& key, int result) {
    if (result != 0)
      throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                       fmt::format("set({}) of the user's store returned {}", key, result),
                       "see the store's own error", result);
  }

  isthmus_store_table m_table{};
};

// Claims the next round of this rank: returns the first number for which the rank has no key yet. The claimed
// rounds are 0, 1, 2 and so on, so doubling steps and a bisection find the end with few queries.
int claim_round(store& keys, const std::string& prefix, int rank) {
  const auto key = [&](int round) { return fmt::format("{}/{}/claim/{}", prefix, round, rank); };
  std::array<std::byte, 1> value{std::byte{1}};
  const auto is_claimed = [&](int round) {
    try {
      keys.get(key(round), value, 0);
      return true;
    } catch (const error& failure) {
      if (failure.info().status == ISTHMUS_ERROR_TIMEOUT) return false;
      throw;
    }
  };
  int claimed = -1, unclaimed = 0;  // the searched round is after `claimed`, at most `unclaimed`
  while (is_claimed(unclaimed)) {
    claimed = unclaimed;
    unclaimed = 2 * unclaimed + 1;
  }
  while (unclaimed - claimed > 1) {
    const int middle = claimed + (unclaimed - claimed) / 2;
    (is_claimed(middle) ? claimed : unclaimed) = middle;
  }
  keys.set(key(unclaimed), value);
  return unclaimed;
}

}  // namespace

std::shared_ptr<store> make_user_store(const isthmus_store_table* table) {
  constexpr std::size_t min_bytes = offsetof(isthmus_store_table, set_if_absent);  // size of the first version
  if (table->struct_bytes < min_bytes || table->set == nullptr || table->get == nullptr)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("communicator_create_store: store->struct_bytes = {} must be at least {}, and set and get "
                    "must not be NULL",
                    table->struct_bytes, min_bytes),
        "fill the whole isthmus_store_table");
  return std::make_shared<user_store>(table);
}

std::unique_ptr<bootstrap> make_user_bootstrap(const isthmus_store_table* table, int rank, int size,
                                               double timeout_s) {
  auto keys = make_user_store(table);
  const std::string prefix = fmt::format("isthmus/{}", size);
  std::string scope = fmt::format("{}/{}", prefix, claim_round(*keys, prefix, rank));
  return make_store_bootstrap(std::move(keys), std::move(scope), rank, size, timeout_s);
}

}  // namespace isthmus
