// Replacements for features that some SYCL implementations lack.
#pragma once

#include <isthmus/sycl.hpp>

namespace sycl_test {

// Replaces handler.host_task, which AdaptiveCpp does not have.
template <typename Body>
void host_task(sycl::handler& handler, Body body) {
  isthmus::detail::host_work(handler, body);
}

// The accessor for host_task().
template <typename T>
using host_task_accessor = sycl::accessor<T, 1, sycl::access_mode::write, isthmus::detail::host_work_target>;

}  // namespace sycl_test
