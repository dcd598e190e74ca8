// Bindings of isthmus.h, part 1: unique ids, life cycle and queries of communicators.
#include <isthmus/mpi_table.h>
#include <isthmus/tools.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <vector>

#include "common.hpp"

namespace isthmus::python {
namespace {

using device_pair = std::pair<isthmus_platform, int>;

// Communicator options with the storage that they point to.
struct options_storage {
  options_storage(const device_pair& device, const std::optional<text>& config_path, double timeout_s)
      : path(config_path) {
    value.struct_bytes = sizeof(value);
    value.device = {device.first, device.second};
    value.config_path = path ? path->c_str() : nullptr;
    value.timeout_s = timeout_s;
  }
  std::optional<text> path;
  isthmus_communicator_options value{};
};

nb::bytes create_unique_id(const std::optional<text>& address) {
  isthmus_unique_id id{};
  check(isthmus_unique_id_create(address ? address->c_str() : nullptr, &id));
  return nb::bytes(id.bytes, sizeof(id.bytes));
}

python_communicator create(nb::bytes id, int rank, int size, const device_pair& device,
                           const std::optional<text>& config_path, double timeout_s) {
  isthmus_unique_id raw{};
  if (id.size() != sizeof(raw.bytes)) {
    throw nb::value_error("the size of id must be 128 bytes; create it with isthmus.UniqueId.create()");
  }
  std::memcpy(raw.bytes, id.data(), sizeof(raw.bytes));
  const options_storage options(device, config_path, timeout_s);
  auto native = std::make_shared<native_communicator>();
  check_without_gil(
      [&] { return isthmus_communicator_create(&raw, rank, size, &options.value, native->handle_address()); });
  return python_communicator(std::move(native));
}

python_communicator create_mpi(nb::capsule table, const device_pair& device,
                               const std::optional<text>& config_path, double timeout_s) {
  const auto* functions = static_cast<const isthmus_mpi_table*>(table.data("isthmus_mpi_table"));
  const options_storage options(device, config_path, timeout_s);
  auto native = std::make_shared<native_communicator>();
  check_without_gil(
      [&] { return isthmus_communicator_create_mpi(functions, &options.value, native->handle_address()); });
  return python_communicator(std::move(native));
}

std::vector<python_communicator> create_all(const std::vector<device_pair>& devices,
                                            const std::optional<text>& config_path, double timeout_s) {
  std::vector<isthmus_device> native_devices;
  for (const device_pair& device : devices) {
    native_devices.push_back({device.first, device.second});
  }
  const int size = static_cast<int>(devices.size());
  const options_storage options({ISTHMUS_PLATFORM_HOST, 0}, config_path, timeout_s);
  std::vector<isthmus_communicator> handles(devices.size(), nullptr);
  check_without_gil([&] {
    return isthmus_communicator_create_all(size, native_devices.data(), &options.value, handles.data());
  });
  std::vector<python_communicator> communicators;
  for (isthmus_communicator handle : handles) {
    auto native = std::make_shared<native_communicator>();
    *native->handle_address() = handle;
    communicators.emplace_back(std::move(native));
  }
  return communicators;
}

// Writes `child` immediately or at the end of the calling thread's group. `child` must remain valid until then.
void split(const python_communicator& parent, python_communicator& child, int color, int key) {
  const active_call call(parent);
  const std::shared_ptr<native_communicator> target = child.native();
  call.run([&] { return isthmus_communicator_split(call.handle(), color, key, target->handle_address()); });
  add_to_group(parent);
}

// Like split, but with the surviving ranks of a failed parent.
void shrink(const python_communicator& parent, python_communicator& child, double wait_s) {
  const active_call call(parent);
  const std::shared_ptr<native_communicator> target = child.native();
  call.run([&] { return isthmus_communicator_shrink(call.handle(), wait_s, target->handle_address()); });
  add_to_group(parent);
}

int parent_rank(const python_communicator& self, int rank) {
  int parent = -1;
  check(isthmus_communicator_parent_rank(self.handle(), rank, &parent));
  return parent;
}

template <typename Value, typename Query>
Value query_value(const python_communicator& self, Query query) {
  Value value{};
  check(query(self.handle(), &value));
  return value;
}

text info(const python_communicator& self) {
  const std::shared_ptr<native_communicator> native = self.native();
  return read_text([&](char* buffer, size_t capacity, size_t* required_bytes) {
    return isthmus_communicator_info(native->handle(), buffer, capacity, required_bytes);
  });
}

text diagnose(std::int64_t pid, const text& job, const text& trace_folder) {
  return read_text([&](char* buffer, size_t capacity, size_t* required_bytes) {
    return isthmus_diagnose(pid, job.c_str(), trace_folder.empty() ? nullptr : trace_folder.c_str(), buffer,
                            capacity, required_bytes);
  });
}

}  // namespace

void bind_communicator(nb::module_& module) {
  module.attr("NO_COLOR") = ISTHMUS_NO_COLOR;
  module.def("create_unique_id", &create_unique_id, nb::arg("address").none());
  module.def("create", &create, nb::arg("id"), nb::arg("rank"), nb::arg("size"), nb::arg("device"),
             nb::arg("config_path").none(), nb::arg("timeout_s"));
  module.def("create_mpi", &create_mpi, nb::arg("table"), nb::arg("device"), nb::arg("config_path").none(),
             nb::arg("timeout_s"));
  module.def("create_all", &create_all, nb::arg("devices"), nb::arg("config_path").none(),
             nb::arg("timeout_s"));

  module.def("diagnose", &diagnose, nb::arg("pid"), nb::arg("job"), nb::arg("trace_folder") = text());

  nb::class_<python_communicator>(module, "Communicator")
      .def_static("pending", [] { return python_communicator(std::make_shared<native_communicator>()); })
      .def("split", &split, nb::arg("child"), nb::arg("color"), nb::arg("key"))
      .def("shrink", &shrink, nb::arg("child"), nb::arg("wait_s"))
      .def("parent_rank", &parent_rank, nb::arg("rank"))
      .def("close", &python_communicator::close)
      .def_prop_ro("closed", &python_communicator::closed)
      .def("abort", [](const python_communicator& self) { check(isthmus_communicator_abort(self.handle())); })
      .def("async_error",
           [](const python_communicator& self) { check(isthmus_communicator_async_error(self.handle())); })
      .def_prop_ro(
          "rank",
          [](const python_communicator& self) { return query_value<int>(self, isthmus_communicator_rank); })
      .def_prop_ro(
          "size",
          [](const python_communicator& self) { return query_value<int>(self, isthmus_communicator_size); })
      .def_prop_ro("local_size",
                   [](const python_communicator& self) {
                     return query_value<int>(self, isthmus_communicator_local_size);
                   })
      .def_prop_ro("device",
                   [](const python_communicator& self) {
                     const auto device = query_value<isthmus_device>(self, isthmus_communicator_device);
                     return device_pair(device.platform, device.ordinal);
                   })
      .def("info", &info);
}

}  // namespace isthmus::python
