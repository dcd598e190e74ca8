// The Python module isthmus.torch._extension: the process group and the report.
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "process_group.hpp"

namespace py = pybind11;
namespace backend = isthmus::torch_backend;

namespace {

// A Python function that C++ may keep, call and drop without holding the interpreter's lock.
backend::process_group::fallback_maker keep(py::function maker) {
  const std::shared_ptr<py::function> kept(new py::function(std::move(maker)), [](py::function* held) {
    const py::gil_scoped_acquire lock;
    delete held;
  });
  return [kept](const backend::process_group::store_ptr& store, c10::DeviceType type, int rank, int size) {
    const py::gil_scoped_acquire lock;
    return (*kept)(store, rank, size, c10::DeviceTypeName(type, /*lower_case=*/true))
        .cast<backend::process_group::backend_ptr>();
  };
}

c10::intrusive_ptr<backend::process_group> make_group(const backend::process_group::store_ptr& store, int rank,
                                                      int size, double timeout_s, std::string name, bool hip,
                                                      py::function fallback) {
  backend::process_group::settings chosen;
  chosen.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1e3));
  chosen.name = std::move(name);
  chosen.accelerator = hip ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA;
  chosen.make_fallback = keep(std::move(fallback));
  return c10::make_intrusive<backend::process_group>(store, rank, size, std::move(chosen));
}

py::list rows() {
  py::list result;
  for (const auto& row : backend::path_report::instance().rows()) {
    py::dict entry;
    entry["group"] = row.path.group;
    entry["device"] = row.path.device;
    entry["collective"] = row.path.collective;
    entry["path"] = row.path.backend;
    entry["reason"] = row.path.reason;
    entry["calls"] = row.calls;
    entry["bytes"] = row.bytes;
    entry["seconds"] = row.seconds;
    result.append(entry);
  }
  return result;
}

}  // namespace

PYBIND11_MODULE(_extension, module) {
  py::module_::import("torch.distributed");  // registers the classes that this one derives from
  py::class_<backend::process_group, c10::intrusive_ptr<backend::process_group>, c10d::Backend>(
      module, "ProcessGroupIsthmus")
      .def(py::init(&make_group), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout_s"),
           py::arg("name"), py::arg("hip"), py::arg("fallback"))
      .def("renew", &backend::process_group::renew, py::call_guard<py::gil_scoped_release>(),
           "Closes all communicators; the next calls make new ones.")
      .def("try_allreduce_inline", &backend::process_group::try_allreduce_inline, py::arg("data"), py::arg("op"),
           py::call_guard<py::gil_scoped_release>(), "A sum in place without a work; whether it was made.")
      .def("agree_on_lost", &backend::process_group::agree_on_lost, py::arg("wait_s"),
           py::call_guard<py::gil_scoped_release>(), "The ranks that do not go on after a failure.")
      .def(
          "communicator",
          [](backend::process_group& self, const c10::Device& device) {
            return reinterpret_cast<std::uintptr_t>(self.communicator(device));
          },
          py::arg("device"), py::call_guard<py::gil_scoped_release>(),
          "The handle of the communicator of the C ABI; collective when it is the group's first use.");
  module.def("report_rows", &rows);
  module.def("reset_report", [] { backend::path_report::instance().reset(); });
}
