// Guard for MPI's threading rules. The guard runs before every use of the table, because MPI itself does not
// check these rules.
#pragma once

#include <isthmus/mpi_table.h>

#include <atomic>

namespace isthmus {

// Holds the permission of the calling thread to call MPI for the lifetime of the object. Costs nothing with
// MPI_THREAD_MULTIPLE, and a few nanoseconds otherwise.
class mpi_thread_guard {
 public:
  explicit mpi_thread_guard(const isthmus_mpi_table& mpi) noexcept {
    if (mpi.thread_level >= multiple) return;
    if (mpi.thread_level == serialized) {
      m_is_inside = !inside_flag().exchange(true, std::memory_order_acquire);
      if (!m_is_inside)
        m_violation =
            "another thread of this process is inside MPI, which was initialized with MPI_THREAD_SERIALIZED";
    } else if (!is_on_main_thread(mpi)) {
      m_violation =
          "MPI was initialized below MPI_THREAD_SERIALIZED, so only the thread that initialized it may "
          "communicate";
    }
  }
  ~mpi_thread_guard() {
    if (m_is_inside) inside_flag().store(false, std::memory_order_release);
  }
  mpi_thread_guard(const mpi_thread_guard&) = delete;
  mpi_thread_guard& operator=(const mpi_thread_guard&) = delete;

  // Returns NULL if MPI may be called, otherwise the rule that the call would violate.
  const char* violation() const noexcept { return m_violation; }
  static constexpr const char* hint =
      "call MPI_Init_thread with MPI_THREAD_MULTIPLE and check the level that it provides";

 private:
  static constexpr int serialized = 2, multiple = 3;

  static std::atomic<bool>& inside_flag() noexcept {
    static std::atomic<bool> flag{false};
    return flag;
  }

  static bool is_on_main_thread(const isthmus_mpi_table& mpi) noexcept {
    static thread_local int cached = -1;  // constant for the lifetime of a thread
    if (cached < 0 && mpi.is_main_thread(&cached) != 0) cached = 0;
    return cached != 0;
  }

  bool m_is_inside = false;
  const char* m_violation = nullptr;
};

}  // namespace isthmus
