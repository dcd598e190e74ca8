// Makes a device current for this thread as long as it lives; then what was current before is so again.
// Header-only: p2p uses it over the runtime that it is linked with.
#pragma once

#include <utility>

namespace isthmus {

// Runtime: get_device(int*) and set_device(int), which give 0 where they succeed. It outlives the scope.
template <typename Runtime>
class scoped_device {
 public:
  using code_type = decltype(std::declval<const Runtime&>().set_device(0));

  scoped_device(const Runtime& runtime, int device) : m_runtime(runtime) {
    m_code = runtime.get_device(&m_previous);
    if (m_code == code_type{} && m_previous != device) m_code = runtime.set_device(device);
    m_has_changed = m_code == code_type{} && m_previous != device;
  }
  ~scoped_device() {
    if (m_has_changed) (void)m_runtime.set_device(m_previous);
  }
  scoped_device(const scoped_device&) = delete;
  scoped_device& operator=(const scoped_device&) = delete;

  code_type code() const { return m_code; }

 private:
  const Runtime& m_runtime;
  int m_previous = -1;
  bool m_has_changed = false;
  code_type m_code{};
};

}  // namespace isthmus
