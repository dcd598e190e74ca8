#include "bootstrap/user_store.hpp"

#include "runtime/error.hpp"

namespace isthmus {
namespace {

class user_store final : public store {
 public:
  explicit user_store(const isthmus_store_table* table) : m_table(*table) {}

  void set(const std::string& key, std::span<const std::byte> value) override {
    const int result = m_table.set(m_table.context, key.c_str(), value.data(), value.size());
    if (result != 0)
      throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                       fmt::format("the caller's store could not set {}", key), "see the store's own error",
                       result);
  }

  void get(const std::string& key, std::span<std::byte> value, double timeout_s) override {
    const int result = m_table.get(m_table.context, key.c_str(), value.data(), value.size(), timeout_s);
    if (result == 0) return;
    if (result == 1)
      throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                       fmt::format("no value for {} within {} s", key, timeout_s));
    throw make_error(ISTHMUS_ERROR_BACKEND, ISTHMUS_HERE,
                     fmt::format("the caller's store could not get {}", key), "see the store's own error",
                     result);
  }

 private:
  const isthmus_store_table m_table;
};

}  // namespace

std::shared_ptr<store> make_user_store(const isthmus_store_table* table) {
  if (table->struct_bytes < sizeof *table || table->set == nullptr || table->get == nullptr)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("communicator_create_store: store->struct_bytes = {} must be at least {}, and set and get "
                    "must not be NULL",
                    table->struct_bytes, sizeof *table),
        "fill the whole isthmus_store_table");
  return std::make_shared<user_store>(table);
}

}  // namespace isthmus
