// The Python module isthmus.torch._extension: the process group and the report.
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "process_group.hpp"

namespace py = pybind11;
namespace backend = isthmus::torch_backend;

namespace {

// Wraps a Python function so that C++ can store, call and release it without holding the GIL.
backend::process_group::fallback_factory wrap_python_function(py::function factory) {
  const std::shared_ptr<py::function> shared(new py::function(std::move(factory)), [](py::function* function) {
    const py::gil_scoped_acquire lock;
    delete function;
  });
  return [shared](const backend::process_group::store_ptr& store, c10::DeviceType type, int rank, int size) {
    const py::gil_scoped_acquire lock;
    return (*shared)(store, rank, size, c10::DeviceTypeName(type, /*lower_case=*/true))
        .cast<backend::process_group::backend_ptr>();
  };
}

c10::intrusive_ptr<backend::process_group> make_group(const backend::process_group::store_ptr& store, int rank,
                                                      int size, double timeout_s, std::string name, bool hip,
                                                      py::function fallback, bool awaits_reconfigure,
                                                      bool has_nonblocking_store) {
  backend::process_group::group_settings settings;
  settings.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1e3));
  settings.name = std::move(name);
  settings.accelerator = hip ? ISTHMUS_PLATFORM_HIP : ISTHMUS_PLATFORM_CUDA;
  settings.make_fallback = wrap_python_function(std::move(fallback));
  settings.awaits_reconfigure = awaits_reconfigure;
  settings.has_nonblocking_store = has_nonblocking_store;
  return c10::make_intrusive<backend::process_group>(store, rank, size, std::move(settings));
}

// The tensors use the memory of `sources` from now on, and keep `owner` alive until their storages are resized or
// released. Other tensors with the same storages, such as those that autograd saves, also use the new memory.
void give_memory(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& sources,
                 const py::object& owner) {
  const auto release = [](void* object) {
    if (Py_IsInitialized() == 0) return;  // a tensor that outlives the interpreter
    const py::gil_scoped_acquire lock;
    delete static_cast<py::object*>(object);
  };
  TORCH_CHECK_VALUE(tensors.size() == sources.size(), "give_memory: there are ", tensors.size(),
                    " tensors and ", sources.size(), " sources; pass one source per tensor");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor &tensor = tensors[i], &source = sources[i];
    const std::size_t bytes = source.nbytes();
    TORCH_CHECK_VALUE(tensor.device() == source.device() && tensor.nbytes() == bytes && source.is_contiguous(),
                      "give_memory: source ", i, " has ", bytes, " bytes on ", source.device(),
                      ", and the tensor ", tensor.nbytes(), " bytes on ", tensor.device(),
                      "; pass contiguous memory of equal size on the same device");
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap({source.data_ptr(), new py::object(owner), release, source.device()});
    storage->set_nbytes(bytes);
  }
}

// The layout of PyTorch's classes differs between versions, so the extension works only with its own.
void check_torch_version() {
  const auto version = py::module_::import("torch").attr("__version__").cast<std::string>();
  if (version.substr(0, version.find('+')) == TORCH_VERSION) return;
  throw py::import_error(
      "isthmus.torch._extension was compiled for PyTorch " TORCH_VERSION ", and this is PyTorch " + version);
}

py::list report_rows() {
  py::list result;
  for (const auto& row : backend::path_report::instance().rows()) {
    py::dict fields;
    fields["group"] = row.path.group;
    fields["device"] = row.path.device;
    fields["collective"] = row.path.collective;
    fields["path"] = row.path.backend;
    fields["reason"] = row.path.reason;
    fields["calls"] = row.calls;
    fields["bytes"] = row.bytes;
    fields["seconds"] = row.seconds;
    result.append(fields);
  }
  return result;
}

void define_functions(py::module_& module) {
  module.def(
      "take_captured", [] { return backend::captured_calls::instance().take(); },
      "Returns the communicators of all calls that were captured into graphs since the previous take.");
  module.def(
      "give_memory", &give_memory, py::arg("tensors"), py::arg("sources"), py::arg("owner"),
      "Makes the tensors use the memory of the sources, which `owner` keeps until the tensors are freed.");
  module.def("report_rows", &report_rows);
  module.def("reset_report", [] { backend::path_report::instance().reset(); });
}

}  // namespace

PYBIND11_MODULE(_extension, module) {
  check_torch_version();
  py::module_::import("torch.distributed");  // registers the base classes
  py::class_<backend::process_group, c10::intrusive_ptr<backend::process_group>, c10d::Backend>(
      module, "ProcessGroupIsthmus")
      .def(py::init(&make_group), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout_s"),
           py::arg("name"), py::arg("hip"), py::arg("fallback"), py::arg("awaits_reconfigure") = false,
           py::arg("has_nonblocking_store") = false)
#if ISTHMUS_TORCH_OLDER_THAN(7)  // later versions define these functions for every backend
      .def("abort", &backend::process_group::abort, py::call_guard<py::gil_scoped_release>())
      .def("shutdown", &backend::process_group::shutdown, py::call_guard<py::gil_scoped_release>())
#endif
      .def(
          "has_failed",
          [](backend::process_group& self) { return self.getError() != backend::error_type::SUCCESS; },
          py::call_guard<py::gil_scoped_release>(),
          "Returns whether a communicator has failed. Does not wait for device work.")
      .def("renew", &backend::process_group::renew, py::call_guard<py::gil_scoped_release>(),
           "Closes all communicators. The next calls create new ones.")
      .def("cancel_coalescing", &backend::process_group::cancel_coalescing,
           py::call_guard<py::gil_scoped_release>(),
           "Ends coalescing after an exception. The calls since its start are dropped.")
      .def("try_allreduce_inline", &backend::process_group::try_allreduce_inline, py::arg("data"),
           py::arg("op"), py::call_guard<py::gil_scoped_release>(),
           "Runs an in-place allreduce without a work object. Returns whether it ran.")
      .def("agree_on_lost_ranks", &backend::process_group::agree_on_lost_ranks, py::arg("wait_s"),
           py::call_guard<py::gil_scoped_release>(), "Returns the ranks that are lost after a failure.")
      .def(
          "communicator",
          [](backend::process_group& self, const c10::Device& device) {
            return reinterpret_cast<std::uintptr_t>(self.communicator(device));
          },
          py::arg("device"), py::call_guard<py::gil_scoped_release>(),
          "Returns the C API handle of the communicator. The first use of a group is collective.");
  py::class_<backend::captured_communicator, std::shared_ptr<backend::captured_communicator>>(
      module, "CapturedCommunicator")
      .def_readonly("group", &backend::captured_communicator::group)
      .def_property_readonly("has_ended",
                             [](const backend::captured_communicator& self) { return self.has_ended.load(); });
  define_functions(module);
}
