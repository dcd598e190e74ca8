// isthmus.h, second half: one entry for every collective of THE TABLE, explain, and groups.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common.hpp"

namespace isthmus::python {
namespace {

using counts = std::optional<std::vector<uint64_t>>;

const uint64_t* pointer_to(const counts& values) { return values ? values->data() : nullptr; }

// The descriptor with the arrays that it points to. Addresses come as integers: Python keeps the
// arrays alive until the operation is done.
struct operation {
  isthmus_operation value{};
  counts send_counts, send_displs, recv_counts, recv_displs;
};

operation make_operation(isthmus_collective collective, isthmus_datatype datatype, isthmus_reduction_op op,
                         int root, uint64_t count, uintptr_t send_address, uintptr_t recv_address,
                         counts send_counts, counts send_displs, counts recv_counts, counts recv_displs,
                         uintptr_t stream) {
  operation made{
      {}, std::move(send_counts), std::move(send_displs), std::move(recv_counts), std::move(recv_displs)};
  made.value.collective = collective;
  made.value.datatype = datatype;
  made.value.op = op;
  made.value.root = root;
  made.value.count = count;
  made.value.send_buf = reinterpret_cast<const void*>(send_address);
  made.value.recv_buf = reinterpret_cast<void*>(recv_address);
  made.value.stream = reinterpret_cast<isthmus_stream>(stream);
  return made;
}

// The calling thread's open groups, and what was called in them.
int& open_groups() {
  static thread_local int depth = 0;
  return depth;
}
std::vector<call>& calls_of_group() {
  static thread_local std::vector<call> calls;
  return calls;
}

// Call after the structure has reached its final place: the vectors may have moved until then.
isthmus_operation& bind_counts(operation& made) {
  made.value.send_counts = pointer_to(made.send_counts);
  made.value.send_displs = pointer_to(made.send_displs);
  made.value.recv_counts = pointer_to(made.recv_counts);
  made.value.recv_displs = pointer_to(made.recv_displs);
  return made.value;
}

void enqueue(const communicator& self, operation& made) {
  const isthmus_operation& value = bind_counts(made);
  const call under_way(self);
  under_way.run([&] { return isthmus_enqueue(under_way.handle(), &value); });
  keep_in_group(self);
}

void start_group() {
  check(isthmus_group_start());
  ++open_groups();
}

// The communicators of its calls are kept until it has ended. When a signal handler raised, all of them are
// given up.
void end_group() {
  if (open_groups() > 0) {
    --open_groups();
  }
  std::vector<call> calls;
  if (open_groups() == 0) {
    calls.swap(calls_of_group());
  }
  check_released([] { return isthmus_group_end(); },
                 [&] {
                   nb::gil_scoped_release released;
                   for (const call& each : calls) {
                     isthmus_communicator_abort(each.handle());
                   }
                 });
}

std::string explain(const communicator& self, operation& made) {
  const isthmus_operation& value = bind_counts(made);
  size_t required_bytes = 0;
  check(isthmus_communicator_explain(self.handle(), &value, nullptr, 0, &required_bytes));
  std::string json(required_bytes, '\0');
  check(isthmus_communicator_explain(self.handle(), &value, json.data(), json.size(), nullptr));
  json.resize(required_bytes - 1);
  return json;
}

nb::tuple partition(const std::vector<double>& speeds, uint64_t count, uint64_t granularity) {
  std::vector<uint64_t> counts(speeds.size()), displs(speeds.size());
  check(isthmus_partition(speeds.data(), static_cast<int>(speeds.size()), count, granularity, counts.data(),
                          displs.data()));
  return nb::make_tuple(std::move(counts), std::move(displs));
}

}  // namespace

void keep_in_group(const communicator& self) {
  if (open_groups() > 0) {
    calls_of_group().emplace_back(self);
  }
}

void bind_operations(nb::module_& module) {
  nb::class_<operation>(module, "Operation")
      .def_static("make", &make_operation, nb::arg("collective"), nb::arg("datatype"), nb::arg("op"),
                  nb::arg("root"), nb::arg("count"), nb::arg("send_address") = 0, nb::arg("recv_address") = 0,
                  nb::arg("send_counts") = nb::none(), nb::arg("send_displs") = nb::none(),
                  nb::arg("recv_counts") = nb::none(), nb::arg("recv_displs") = nb::none(),
                  nb::arg("stream") = 0);
  module.def("enqueue", &enqueue, nb::arg("communicator"), nb::arg("operation"));
  module.def("explain", &explain, nb::arg("communicator"), nb::arg("operation"));
  module.def("partition", &partition, nb::arg("speeds"), nb::arg("count"), nb::arg("granularity"));
  module.def("group_start", &start_group);
  module.def("group_end", &end_group);
}

}  // namespace isthmus::python
