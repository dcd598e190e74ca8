// Plans of isthmus/fused.h for the products of one communicator. A plan serves all calls with one shape.
#pragma once

#include <isthmus/fused.h>

#include <compare>
#include <cstdint>
#include <list>
#include <memory>

#include "report.hpp"

namespace isthmus::torch_backend {

// Must be equal on all ranks, so that all of them create the same plans.
struct product_shape {
  isthmus_fused_kind kind;
  isthmus_datatype datatype;     // of all tensors
  isthmus_matrix_layout layout;  // of the transposed weight, which is dense
  std::uint64_t m, n, k;         // as in isthmus/fused.h
  bool operator==(const product_shape&) const = default;
};

// The name of the operator in isthmus.torch.report().
const char* operator_name(isthmus_fused_kind kind);

// A plan, or the knowledge that the communicator does not support the shape.
class product_plan {
 public:
  product_plan(const product_shape& shape, isthmus_fused_plan handle, call_counter& counter)
      : m_shape(shape), m_handle(handle), m_counter(counter) {}
  ~product_plan();
  product_plan(const product_plan&) = delete;
  product_plan& operator=(const product_plan&) = delete;

  const product_shape& shape() const { return m_shape; }
  bool is_supported() const { return m_handle != nullptr; }
  call_counter& counter() const { return m_counter; }
  bool is_captured() const { return m_is_captured; }

  // Enqueues a run. A captured run makes the plan permanent, because the graph uses its memory.
  isthmus_status run(isthmus_fused_arguments arguments, isthmus_stream stream, bool is_captured);

 private:
  const product_shape m_shape;
  const isthmus_fused_plan m_handle;  // NULL: not supported
  call_counter& m_counter;
  bool m_is_captured = false;
};

// The plans of one communicator. If there are too many, those that were not used for the longest time are destroyed,
// except those of captured runs. All ranks make the same calls, so they destroy the same plans.
class product_plans {
 public:
  // Returns NULL if there is no such plan yet.
  std::shared_ptr<product_plan> find(const product_shape& shape);
  // Creates a plan. `group` and `device` are for report().
  // Blocking: collective. Waits for work on the device.
  // Errors: throws DistBackendError. On all ranks if the communicator does not support the shape, returns a plan that is
  //   not supported.
  std::shared_ptr<product_plan> create(const product_shape& shape, isthmus_communicator communicator,
                                       const std::string& group, const std::string& device);
  // Must be called before the communicator is destroyed.
  void clear() noexcept { m_plans.clear(); }

 private:
  std::list<std::shared_ptr<product_plan>> m_plans;  // the most recently used first
};

}  // namespace isthmus::torch_backend
