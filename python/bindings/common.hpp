// Shared by all binding files: text and errors that are passed to Python, and ownership of communicators.
#pragma once

#include <isthmus/interrupt.h>
#include <isthmus/isthmus.h>
#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <isthmus/error.hpp>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace isthmus::python {

namespace nb = nanobind;

// Text of the C ABI, which can be any bytes: paths and variables of the environment are not always UTF-8.
// Bytes that are not UTF-8 become U+FFFD in Python. A str with surrogates for such bytes (os.fsdecode) becomes the
// original bytes.
struct text : std::string {
  using std::string::string;
  nb::str decoded() const {
    return nb::steal<nb::str>(PyUnicode_DecodeUTF8(data(), static_cast<Py_ssize_t>(size()), "replace"));
  }
};

// Sets the Python exception isthmus.errors.Error. The class is implemented in Python, so that it can be pickled.
inline void set_error(const isthmus_error_info& info, const std::vector<int>& failed_ranks) {
  nb::object type = nb::module_::import_("isthmus.errors").attr("Error");
  const char* collective =
      info.collective < 0 ? nullptr : isthmus_collective_name(static_cast<isthmus_collective>(info.collective));
  nb::list ranks;
  for (const int rank : failed_ranks) {
    ranks.append(rank);
  }
  nb::object value =
      type(nb::arg("message") = text(info.message).decoded(), nb::arg("code") = info.status,
           nb::arg("collective") = collective, nb::arg("rank") = info.rank,
           nb::arg("backend") = text(info.backend).decoded(), nb::arg("native_code") = info.native_code,
           nb::arg("location") = text(info.location).decoded(), nb::arg("hint") = text(info.hint).decoded(),
           nb::arg("ranks") = nb::tuple(ranks));
  PyErr_SetObject(type.ptr(), value.ptr());
}

// Exception thrown by check(). The translator in types.cpp converts it to isthmus.Error with all fields.
struct core_error {
  isthmus_error_info info;
  std::vector<int> ranks;
};

// If the status is an error, throws an exception with the error details of the calling thread.
inline void check(isthmus_status status) {
  if (status == ISTHMUS_SUCCESS) {
    return;
  }
  core_error error{};
  isthmus_last_error(&error.info);
  error.ranks = isthmus::detail::last_error_ranks();
  throw error;
}

// Installs an interrupt check (isthmus/interrupt.h), so that Python signal handlers run while the main thread
// waits in the core. A handler that raises an exception (Ctrl-C) ends the wait. After the first call of a
// thread, this function only reads a thread-local flag. The caller must hold the GIL.
inline void install_signal_check() {
  static thread_local bool is_installed = false;
  if (std::exchange(is_installed, true)) {
    return;
  }
  const auto main_thread = nb::module_::import_("threading").attr("main_thread")().attr("ident");
  if (nb::cast<unsigned long>(main_thread) != PyThread_get_thread_ident()) {
    return;  // Python runs handlers only on the main thread
  }
  isthmus_set_interrupt_check(
      [](void*) {
        const nb::gil_scoped_acquire gil;
        return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0 ? 1 : 0;
      },
      nullptr);
}

// Calls a blocking C function without the GIL and checks its status. An exception raised by a signal handler
// takes precedence. In this case, `abort_calls` is called first if the function failed.
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

// Reads a text from a function of the C ABI with the signature (buffer, capacity, required bytes), without the
// GIL. Retries until the text fits, because it can grow between two calls.
template <typename Query>
text read_text(Query&& query) {
  constexpr size_t spare_bytes = 1 << 16;
  text result;
  size_t required_bytes = 0;
  do {
    result.resize(required_bytes + spare_bytes);
    check_without_gil([&] { return query(result.data(), result.size(), &required_bytes); });
  } while (required_bytes > result.size());
  result.resize(required_bytes - 1);
  return result;
}

// Handle of a communicator with shared ownership. Its owners are the Python object, active calls, and arrays in
// the symmetric heap. Arrays are owners because destroying the communicator releases their memory.
//
// Lifetime: the last owner destroys the communicator and must hold the GIL.
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
  // Output argument of create and split calls. Inside a group it is written when the group ends.
  isthmus_communicator* handle_address() { return &m_handle; }

  void begin_call() { m_calls.fetch_add(1); }
  void end_call() { m_calls.fetch_sub(1); }
  bool has_active_calls() const { return m_calls.load() != 0; }

 private:
  isthmus_communicator m_handle = nullptr;
  std::atomic<int> m_calls{0};
};

// The Python class Communicator. close() releases its ownership. Any later use is an error.
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

  // Aborts active calls of other threads and waits up to 5 s for them to return. A call that takes longer
  // destroys the communicator when it returns.
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

// Keeps the native communicator alive during a call, even if the Python object is closed. The GIL must be held
// during construction and destruction.
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

  // Runs a blocking call. If a signal handler raises an exception and the call fails, the communicator is
  // aborted, so that the other ranks do not wait for this rank.
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

// Keeps the communicator alive until the end of the calling thread's group, if there is one.
void add_to_group(const python_communicator& self);

// One function per file, called by module.cpp.
void bind_types(nb::module_& module);
void bind_buffer(nb::module_& module);
void bind_communicator(nb::module_& module);
void bind_operations(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_fused(nb::module_& module);

}  // namespace isthmus::python

// Converts text in both directions. Conversion fails for objects that are not str and for other surrogates.
template <>
struct nanobind::detail::type_caster<isthmus::python::text> {
  NB_TYPE_CASTER(isthmus::python::text, const_name("str"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    if (!PyUnicode_Check(source.ptr())) {
      return false;
    }
    const object bytes = steal(PyUnicode_AsEncodedString(source.ptr(), "utf-8", "surrogateescape"));
    if (!bytes.is_valid()) {
      PyErr_Clear();
      return false;
    }
    value.assign(PyBytes_AsString(bytes.ptr()), static_cast<size_t>(PyBytes_Size(bytes.ptr())));
    return true;
  }
  static handle from_cpp(const isthmus::python::text& source, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_DecodeUTF8(source.data(), static_cast<Py_ssize_t>(source.size()), "replace");
  }
};
