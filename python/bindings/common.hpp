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
struct core_error {
  isthmus_error_info info;
  std::vector<int> ranks;
};

// Turns a status into an exception with the calling thread's error details.
inline void check(isthmus_status status) {
  if (status == ISTHMUS_SUCCESS) {
    return;
  }
  core_error error{};
  isthmus_last_error(&error.info);
  error.ranks = isthmus::detail::last_error_ranks();
  throw error;
}

// Lets Python's signal handlers run on the main thread while it waits in the core (isthmus/interrupt.h); a
// handler that raises (Ctrl-C) ends the wait. Costs a look at a thread-local flag once a thread has passed.
// Needs the GIL.
inline void install_signal_check() {
  static thread_local bool is_installed = false;
  if (std::exchange(is_installed, true)) {
    return;
  }
  const auto main_thread = nb::module_::import_("threading").attr("main_thread")().attr("ident");
  if (nb::cast<unsigned long>(main_thread) != PyThread_get_thread_ident()) {
    return;  // Python runs handlers on its main thread only
  }
  isthmus_set_interrupt_check(
      [](void*) {
        const nb::gil_scoped_acquire gil;
        return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0 ? 1 : 0;
      },
      nullptr);
}

// Calls a blocking C function without the GIL, then checks its status (the last error is per thread,
// and the thread stays the same). What a signal handler raised meanwhile comes first, after `abort_calls`.
template <typename Function, typename AbortCalls>
void check_without_gil(Function&& function, AbortCalls&& abort_calls) {
  install_signal_check();
  isthmus_status status;
  {
    nb::gil_scoped_release no_gil;
    status = function();
  }
  if (PyErr_Occurred() != nullptr) {
    nb::python_error exception;
    if (status != ISTHMUS_SUCCESS) {
      abort_calls();
    }
    throw exception;
  }
  check(status);
}
template <typename Function>
void check_without_gil(Function&& function) {
  check_without_gil(std::forward<Function>(function), [] {});
}

// One rank's membership. Shared by the Python object, by every array of its symmetric heap, because destroying
// the communicator releases that memory, and by every call under way: the last owner destroys it. The GIL is
// held then.
class native_communicator {
 public:
  native_communicator() = default;
  native_communicator(const native_communicator&) = delete;
  native_communicator& operator=(const native_communicator&) = delete;
  ~native_communicator() {
    nb::gil_scoped_release no_gil;
    isthmus_communicator_destroy(m_handle);
  }

  isthmus_communicator handle() const { return m_handle; }
  // Where a create or split call writes the handle (inside a group that happens at the group's end).
  isthmus_communicator* handle_address() { return &m_handle; }

  void begin_call() { m_calls.fetch_add(1); }
  void end_call() { m_calls.fetch_sub(1); }
  bool has_active_calls() const { return m_calls.load() != 0; }

 private:
  isthmus_communicator m_handle = nullptr;
  std::atomic<int> m_calls{0};
};

// The Python class. `close` gives up this owner; using it afterwards is an error.
class python_communicator {
 public:
  explicit python_communicator(std::shared_ptr<native_communicator> native) : m_native(std::move(native)) {}

  const std::shared_ptr<native_communicator>& native() const {
    if (!m_native) {
      throw nb::value_error("the communicator is closed");
    }
    return m_native;
  }
  isthmus_communicator handle() const { return native()->handle(); }
  bool closed() const { return !m_native; }

  // A call of another thread that is still under way is aborted, and gets a moment to end; if it does not, it
  // destroys the communicator when it does.
  void close() {
    const std::shared_ptr<native_communicator> native = std::move(m_native);
    if (!native || !native->has_active_calls()) {
      return;
    }
    nb::gil_scoped_release no_gil;
    isthmus_communicator_abort(native->handle());
    for (int tenths = 0; tenths < 50 && native->has_active_calls(); ++tenths) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

 private:
  std::shared_ptr<native_communicator> m_native;
};

// A call under way: keeps the membership alive, whatever becomes of the Python object meanwhile. Made and
// destroyed with the GIL held.
class active_call {
 public:
  explicit active_call(const python_communicator& self) : m_native(self.native()) { m_native->begin_call(); }
  active_call(active_call&& other) noexcept = default;
  active_call& operator=(active_call&&) = delete;
  ~active_call() {
    if (m_native) {
      m_native->end_call();
    }
  }
  isthmus_communicator handle() const { return m_native->handle(); }

  // A blocking call of this communicator. When a signal handler raised, the other ranks may have taken their
  // part or still wait for this one's: the communicator is poisoned, and they hear of it.
  template <typename Function>
  void run(Function&& function) const {
    check_without_gil(std::forward<Function>(function), [this] {
      nb::gil_scoped_release no_gil;
      isthmus_communicator_abort(handle());
    });
  }

 private:
  std::shared_ptr<native_communicator> m_native;
};

// Inside a group of the calling thread, a call is under way until the group's end.
void add_to_group(const python_communicator& self);

// One function per file, called by the module.
void bind_types(nb::module_& module);
void bind_buffer(nb::module_& module);
void bind_communicator(nb::module_& module);
void bind_operations(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_fused(nb::module_& module);

}  // namespace isthmus::python
