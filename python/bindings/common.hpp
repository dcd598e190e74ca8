// What the binding files share: the error that crosses into Python and the communicator's ownership.
#pragma once

#include <isthmus/interrupt.h>
#include <isthmus/isthmus.h>
#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <isthmus/error.hpp>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace isthmus::python {

namespace nb = nanobind;

// Thrown by check; a translator (types.cpp) turns it into isthmus.Error with every field.
struct failure {
  isthmus_error_info info;
  std::vector<int> ranks;
};

// Turns a status into an exception with the calling thread's error details.
inline void check(isthmus_status status) {
  if (status == ISTHMUS_SUCCESS) {
    return;
  }
  failure thrown{};
  isthmus_last_error(&thrown.info);
  thrown.ranks = isthmus::detail::last_error_ranks();
  throw thrown;
}

// Lets Python's signal handlers run on the main thread while it waits in the core (isthmus/interrupt.h); a
// handler that raises (Ctrl-C) ends the wait. Costs a look at a thread-local flag once a thread has passed.
// Needs the GIL.
inline void let_signals_interrupt() {
  static thread_local bool done = false;
  if (std::exchange(done, true)) {
    return;
  }
  const auto main_thread = nb::module_::import_("threading").attr("main_thread")().attr("ident");
  if (nb::cast<unsigned long>(main_thread) != PyThread_get_thread_ident()) {
    return;  // Python runs handlers on its main thread only
  }
  isthmus_set_interrupt_check(
      [](void*) {
        const nb::gil_scoped_acquire held;
        return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0 ? 1 : 0;
      },
      nullptr);
}

// Calls a blocking C function without the GIL, then checks its status (the last error is per thread,
// and the thread stays the same). What a signal handler raised meanwhile comes first, after `give_up`.
template <typename Function, typename GiveUp>
void check_released(Function&& function, GiveUp&& give_up) {
  let_signals_interrupt();
  isthmus_status status;
  {
    nb::gil_scoped_release released;
    status = function();
  }
  if (PyErr_Occurred() != nullptr) {
    nb::python_error raised;
    if (status != ISTHMUS_SUCCESS) {
      give_up();
    }
    throw raised;
  }
  check(status);
}
template <typename Function>
void check_released(Function&& function) {
  check_released(std::forward<Function>(function), [] {});
}

// One rank's membership. Shared by the Python object, by every array of its symmetric heap, because destroying
// the communicator releases that memory, and by every call under way: the last owner destroys it. The GIL is
// held then.
class membership {
 public:
  membership() = default;
  membership(const membership&) = delete;
  membership& operator=(const membership&) = delete;
  ~membership() {
    nb::gil_scoped_release released;
    isthmus_communicator_destroy(m_handle);
  }

  isthmus_communicator handle() const { return m_handle; }
  // Where a create or split call writes the handle (inside a group that happens at the group's end).
  isthmus_communicator* slot() { return &m_handle; }

  void enter() { m_calls.fetch_add(1); }
  void leave() { m_calls.fetch_sub(1); }
  bool is_called() const { return m_calls.load() != 0; }

 private:
  isthmus_communicator m_handle = nullptr;
  std::atomic<int> m_calls{0};
};

// The Python class. `close` gives up this owner; using it afterwards is an error.
class communicator {
 public:
  explicit communicator(std::shared_ptr<membership> member) : m_member(std::move(member)) {}

  const std::shared_ptr<membership>& member() const {
    if (!m_member) {
      throw nb::value_error("the communicator is closed");
    }
    return m_member;
  }
  isthmus_communicator handle() const { return member()->handle(); }
  bool closed() const { return !m_member; }

  // A call of another thread that is still under way is aborted, and gets a moment to end; if it does not, it
  // destroys the communicator when it does.
  void close() {
    const std::shared_ptr<membership> member = std::move(m_member);
    if (!member || !member->is_called()) {
      return;
    }
    nb::gil_scoped_release released;
    isthmus_communicator_abort(member->handle());
    for (int tenths = 0; tenths < 50 && member->is_called(); ++tenths) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

 private:
  std::shared_ptr<membership> m_member;
};

// A call under way: keeps the membership alive, whatever becomes of the Python object meanwhile. Made and
// destroyed with the GIL held.
class call {
 public:
  explicit call(const communicator& self) : m_member(self.member()) { m_member->enter(); }
  call(call&& other) noexcept = default;
  call& operator=(call&&) = delete;
  ~call() {
    if (m_member) {
      m_member->leave();
    }
  }
  isthmus_communicator handle() const { return m_member->handle(); }

  // A blocking call of this communicator. When a signal handler raised, the other ranks may have taken their
  // part or still wait for this one's: the communicator is poisoned, and they hear of it.
  template <typename Function>
  void run(Function&& function) const {
    check_released(std::forward<Function>(function), [this] {
      nb::gil_scoped_release released;
      isthmus_communicator_abort(handle());
    });
  }

 private:
  std::shared_ptr<membership> m_member;
};

// Inside a group of the calling thread, a call is under way until the group's end.
void keep_in_group(const communicator& self);

// One function per file, called by the module.
void bind_types(nb::module_& module);
void bind_buffer(nb::module_& module);
void bind_communicator(nb::module_& module);
void bind_operations(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_fused(nb::module_& module);

}  // namespace isthmus::python
