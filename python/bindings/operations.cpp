// Bindings of isthmus.h, part 2: collectives, tree_allreduce, allreduce_rmsnorm, explain, partition and groups.
#include <isthmus/allreduce_rmsnorm.h>
#include <isthmus/tools.h>
#include <isthmus/tree_allreduce.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common.hpp"

namespace isthmus::python {
namespace {

using counts = std::optional<std::vector<uint64_t>>;

const uint64_t* pointer_to(const counts& values) { return values ? values->data() : nullptr; }

// Operation descriptor with the count arrays that it points to. Buffers are passed as integer addresses. The
// Python code keeps them alive until the operation is complete.
struct operation_storage {
  isthmus_operation value{};
  counts send_counts, send_displs, recv_counts, recv_displs;
};

operation_storage make_operation(isthmus_collective collective, isthmus_datatype datatype,
                                 isthmus_reduction_op op, int root, uint64_t count, uintptr_t send_address,
                                 uintptr_t recv_address, counts send_counts, counts send_displs,
                                 counts recv_counts, counts recv_displs, uintptr_t stream) {
  operation_storage operation{
      {}, std::move(send_counts), std::move(send_displs), std::move(recv_counts), std::move(recv_displs)};
  operation.value.collective = collective;
  operation.value.datatype = datatype;
  operation.value.op = op;
  operation.value.root = root;
  operation.value.count = count;
  operation.value.send_buf = reinterpret_cast<const void*>(send_address);
  operation.value.recv_buf = reinterpret_cast<void*>(recv_address);
  operation.value.stream = reinterpret_cast<isthmus_stream>(stream);
  return operation;
}

// The depth of the calling thread's groups, and the active calls of the outermost group.
int& group_depth() {
  static thread_local int depth = 0;
  return depth;
}
std::vector<active_call>& group_calls() {
  static thread_local std::vector<active_call> calls;
  return calls;
}

// Call this when the structure is at its final address, because a move invalidates the pointers.
isthmus_operation& bind_counts(operation_storage& operation) {
  operation.value.send_counts = pointer_to(operation.send_counts);
  operation.value.send_displs = pointer_to(operation.send_displs);
  operation.value.recv_counts = pointer_to(operation.recv_counts);
  operation.value.recv_displs = pointer_to(operation.recv_displs);
  return operation.value;
}

void enqueue(const python_communicator& self, operation_storage& operation) {
  const isthmus_operation& value = bind_counts(operation);
  const active_call call(self);
  call.run([&] { return isthmus_enqueue(call.handle(), &value); });
  add_to_group(self);
}

void tree_allreduce(const python_communicator& self, uintptr_t leaves_address, uint64_t leaf_count,
                    uintptr_t recv_address, uint64_t count, isthmus_datatype datatype) {
  const active_call call(self);
  call.run([&] {
    return isthmus_tree_allreduce(reinterpret_cast<const void*>(leaves_address), leaf_count,
                                  reinterpret_cast<void*>(recv_address), count, datatype, call.handle());
  });
}

void allreduce_rmsnorm(const python_communicator& self, uint64_t tokens, uint64_t hidden,
                       isthmus_datatype datatype, isthmus_datatype output, double eps, uintptr_t input_address,
                       uintptr_t residual_address, uintptr_t weight_address, uintptr_t residual_out_address,
                       uintptr_t normalized_address, uintptr_t scale_address, uintptr_t scales_address,
                       uintptr_t stream, bool round_before_weight) {
  isthmus_allreduce_rmsnorm_arguments arguments{};
  arguments.struct_bytes = sizeof arguments;
  arguments.tokens = tokens, arguments.hidden = hidden;
  arguments.datatype = datatype, arguments.output = output;
  arguments.eps = eps;
  arguments.input = reinterpret_cast<const void*>(input_address);
  arguments.residual = reinterpret_cast<const void*>(residual_address);
  arguments.weight = reinterpret_cast<const void*>(weight_address);
  arguments.residual_out = reinterpret_cast<void*>(residual_out_address);
  arguments.normalized = reinterpret_cast<void*>(normalized_address);
  arguments.scale = reinterpret_cast<const float*>(scale_address);
  arguments.scales = reinterpret_cast<float*>(scales_address);
  arguments.stream = reinterpret_cast<isthmus_stream>(stream);
  arguments.round_before_weight = round_before_weight ? 1 : 0;
  const active_call call(self);
  call.run([&] { return isthmus_allreduce_rmsnorm(call.handle(), &arguments); });
}

void start_group() {
  check(isthmus_group_start());
  ++group_depth();
}

// Keeps the communicators of the group alive until the group ends. If a signal handler raises an exception and
// the group fails, aborts all of them.
void end_group() {
  if (group_depth() > 0) {
    --group_depth();
  }
  std::vector<active_call> calls;
  if (group_depth() == 0) {
    calls.swap(group_calls());
  }
  check_without_gil([] { return isthmus_group_end(); },
                    [&] {
                      nb::gil_scoped_release no_gil;
                      for (const active_call& call : calls) {
                        isthmus_communicator_abort(call.handle());
                      }
                    });
}

// With `has_rmsnorm`, the allreduce is the first part of allreduce_rmsnorm on a device.
text explain(const python_communicator& self, operation_storage& operation, bool has_rmsnorm) {
  isthmus_operation value = bind_counts(operation);
  const isthmus_rmsnorm norm{};
  if (has_rmsnorm) value.rmsnorm = &norm;
  const std::shared_ptr<native_communicator> native = self.native();
  return read_text([&](char* buffer, size_t capacity, size_t* required_bytes) {
    return isthmus_communicator_explain(native->handle(), &value, buffer, capacity, required_bytes);
  });
}

std::pair<std::vector<uint64_t>, std::vector<uint64_t>> partition(const std::vector<double>& speeds,
                                                                  uint64_t count, uint64_t granularity) {
  std::vector<uint64_t> counts(speeds.size()), displs(speeds.size());
  check(isthmus_partition(speeds.data(), static_cast<int>(speeds.size()), count, granularity, counts.data(),
                          displs.data()));
  return {std::move(counts), std::move(displs)};
}

}  // namespace

void add_to_group(const python_communicator& self) {
  if (group_depth() > 0) {
    group_calls().emplace_back(self);
  }
}

void bind_operations(nb::module_& module) {
  nb::class_<operation_storage>(module, "Operation")
      .def_static("make", &make_operation, nb::arg("collective"), nb::arg("datatype"), nb::arg("op"),
                  nb::arg("root"), nb::arg("count"), nb::arg("send_address") = 0, nb::arg("recv_address") = 0,
                  nb::arg("send_counts") = nb::none(), nb::arg("send_displs") = nb::none(),
                  nb::arg("recv_counts") = nb::none(), nb::arg("recv_displs") = nb::none(),
                  nb::arg("stream") = 0);
  module.def("enqueue", &enqueue, nb::arg("communicator"), nb::arg("operation"));
  module.def("tree_allreduce", &tree_allreduce, nb::arg("communicator"), nb::arg("leaves_address"),
             nb::arg("leaf_count"), nb::arg("recv_address"), nb::arg("count"), nb::arg("datatype"));
  module.def("allreduce_rmsnorm", &allreduce_rmsnorm, nb::arg("communicator"), nb::arg("tokens"),
             nb::arg("hidden"), nb::arg("datatype"), nb::arg("output"), nb::arg("eps"),
             nb::arg("input_address"), nb::arg("residual_address"), nb::arg("weight_address"),
             nb::arg("residual_out_address"), nb::arg("normalized_address"), nb::arg("scale_address"),
             nb::arg("scales_address"), nb::arg("stream"), nb::arg("round_before_weight"));
  module.def("explain", &explain, nb::arg("communicator"), nb::arg("operation"), nb::arg("has_rmsnorm"));
  module.def("partition", &partition, nb::arg("speeds"), nb::arg("count"), nb::arg("granularity"));
  module.def("group_start", &start_group);
  module.def("group_end", &end_group);
}

}  // namespace isthmus::python
