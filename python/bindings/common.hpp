// What the binding files share: the error that crosses into Python and the communicator's ownership.
#pragma once

#include <isthmus/isthmus.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace isthmus::python {

namespace nb = nanobind;

// Thrown by check; a translator (types.cpp) turns it into isthmus.Error with every field.
struct failure {
  isthmus_error_info info;
};

// Turns a status into an exception with the calling thread's error details.
inline void check(isthmus_status status) {
  if (status == ISTHMUS_SUCCESS) {
    return;
  }
  failure thrown{};
  isthmus_last_error(&thrown.info);
  throw thrown;
}

// Calls a blocking C function without the GIL, then checks its status (the last error is per thread,
// and the thread stays the same).
template <typename Function>
void check_released(Function&& function) {
  isthmus_status status;
  {
    nb::gil_scoped_release released;
    status = function();
  }
  check(status);
}

// One rank's membership. Shared by the Python object and by every array of its symmetric heap, because
// destroying the communicator releases that memory: the last owner destroys it. The GIL is held then.
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

 private:
  isthmus_communicator m_handle = nullptr;
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
  void close() { m_member.reset(); }

 private:
  std::shared_ptr<membership> m_member;
};

// One function per file, called by the module.
void bind_types(nb::module_& module);
void bind_buffer(nb::module_& module);
void bind_communicator(nb::module_& module);
void bind_operations(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_fused(nb::module_& module);

}  // namespace isthmus::python
