#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/key_values.hpp"

namespace isthmus {
namespace {

class local_store final : public store {
 public:
  void set(const std::string& key, std::span<const std::byte> value) override {
    {
      const std::lock_guard lock(m_mutex);
      m_values[key].assign(value.begin(), value.end());
    }
    m_condition.notify_all();
  }

  void set_if_absent(const std::string& key, std::span<const std::byte> value) override {
    {
      const std::lock_guard lock(m_mutex);
      m_values.try_emplace(key, value.begin(), value.end());
    }
    m_condition.notify_all();
  }

  void get(const std::string& key, std::span<std::byte> value, double timeout_s) override {
    std::unique_lock lock(m_mutex);
    const auto is_present = [&] { return m_values.contains(key); };
    if (!m_condition.wait_for(lock, std::chrono::duration<double>(timeout_s), is_present))
      throw make_error(ISTHMUS_ERROR_TIMEOUT, ISTHMUS_HERE,
                       fmt::format("store key {} was not set within {} s", key, timeout_s));
    const auto& stored_value = m_values[key];
    if (stored_value.size() != value.size())
      throw make_error(
          ISTHMUS_ERROR_MISMATCH, ISTHMUS_HERE,
          fmt::format("store key {} holds {} bytes, {} were expected", key, stored_value.size(), value.size()));
    std::copy(stored_value.begin(), stored_value.end(), value.begin());
  }

  void erase(const std::string& key) override {
    const std::lock_guard lock(m_mutex);
    m_values.erase(key);
  }

  void release(const std::string& scope, int size) override {
    const std::lock_guard lock(m_mutex);
    release_scope(m_values, scope, static_cast<std::uint32_t>(size));
  }

 private:
  std::mutex m_mutex;
  std::condition_variable m_condition;
  key_values m_values;
};

}  // namespace

std::shared_ptr<store> make_local_store() { return std::make_shared<local_store>(); }

}  // namespace isthmus
