// MPI's rule about threads, checked before every use of the table, because MPI itself does not check it.
#pragma once

#include <isthmus/mpi_table.h>

#include <atomic>

namespace isthmus {

// A thread's permission to be inside MPI, for as long as the object lives. Costs nothing at
// MPI_THREAD_MULTIPLE, a few nanoseconds below.
class mpi_pass {
 public:
  explicit mpi_pass(const isthmus_mpi_table& mpi) noexcept {
    if (mpi.thread_level >= multiple) return;
    if (mpi.thread_level == serialized) {
      m_holds = !inside().exchange(true, std::memory_order_acquire);
      if (!m_holds)
        m_breach =
            "another thread of this process is inside MPI, which was initialised with MPI_THREAD_SERIALIZED";
    } else if (!on_main_thread(mpi)) {
      m_breach =
          "MPI was initialised below MPI_THREAD_SERIALIZED, so only the thread that initialised it may "
          "communicate";
    }
  }
  ~mpi_pass() {
    if (m_holds) inside().store(false, std::memory_order_release);
  }
  mpi_pass(const mpi_pass&) = delete;
  mpi_pass& operator=(const mpi_pass&) = delete;

  // NULL when MPI may be called, else the rule that would be broken.
  const char* breach() const noexcept { return m_breach; }
  static constexpr const char* hint =
      "call MPI_Init_thread with MPI_THREAD_MULTIPLE and check what it provides";

 private:
  static constexpr int serialized = 2, multiple = 3;

  static std::atomic<bool>& inside() noexcept {
    static std::atomic<bool> flag{false};
    return flag;
  }

  static bool on_main_thread(const isthmus_mpi_table& mpi) noexcept {
    static thread_local int known = -1;  // a thread stays what it is
    if (known < 0 && mpi.is_main_thread(&known) != 0) known = 0;
    return known != 0;
  }

  bool m_holds = false;
  const char* m_breach = nullptr;
};

}  // namespace isthmus
