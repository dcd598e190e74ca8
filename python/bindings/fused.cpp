// Bindings of fused.h: plans. The Python code checks the arrays and passes their addresses, types and shapes.
#include <isthmus/fused.h>

#include <cstdint>
#include <memory>

#include "common.hpp"

namespace isthmus::python {
namespace {

// Fused plan. Shares ownership of its communicator, which must outlive it. The GIL must be
// held during destruction.
class fused_plan {
 public:
  fused_plan(const python_communicator& owner, isthmus_fused_kind kind, isthmus_fused_mode mode, uint64_t m,
             uint64_t n, uint64_t k, isthmus_datatype input, isthmus_datatype output, bool b_column_major,
             uint32_t flags, uint64_t lda, uint64_t ldb, uint64_t ldc, uint32_t chunks)
      : m_owner(owner.native()) {
    isthmus_fused_description description{};
    description.struct_bytes = sizeof(description);
    description.kind = kind;
    description.mode = mode;
    description.m = m, description.n = n, description.k = k;
    description.input = input, description.output = output;
    description.b_layout = b_column_major ? ISTHMUS_COLUMN_MAJOR : ISTHMUS_ROW_MAJOR;
    description.flags = flags;
    description.lda = lda, description.ldb = ldb, description.ldc = ldc;
    description.chunks = chunks;
    const active_call call(m_owner);
    call.run([&] { return isthmus_fused_plan_create(call.handle(), &description, &m_plan); });
  }
  fused_plan(const fused_plan&) = delete;
  fused_plan& operator=(const fused_plan&) = delete;
  ~fused_plan() {
    nb::gil_scoped_release no_gil;
    isthmus_fused_plan_destroy(m_plan);
  }

  void run(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t bias, uintptr_t gathered_a, double alpha,
           double beta, isthmus_fused_view view, uintptr_t stream) {
    isthmus_fused_arguments arguments{};
    arguments.struct_bytes = sizeof(arguments);
    arguments.a = reinterpret_cast<const void*>(a);
    arguments.b = reinterpret_cast<const void*>(b);
    arguments.c = reinterpret_cast<void*>(c);
    arguments.bias = reinterpret_cast<const void*>(bias);
    arguments.gathered_a = reinterpret_cast<void*>(gathered_a);
    arguments.alpha = alpha;
    arguments.beta = beta;
    arguments.view = view;
    arguments.stream = reinterpret_cast<isthmus_stream>(stream);
    const active_call call(m_owner);
    call.run([&] { return isthmus_fused_run(m_plan, &arguments); });
  }

  text info() const { return read_with(isthmus_fused_plan_info); }
  text trace() const { return read_with(isthmus_fused_plan_trace); }

  void close() {
    const isthmus_fused_plan plan = std::exchange(m_plan, nullptr);
    check_without_gil([&] { return isthmus_fused_plan_destroy(plan); });
  }

 private:
  template <typename Query>
  text read_with(Query query) const {
    return read_text([&](char* buffer, size_t capacity, size_t* required_bytes) {
      return query(m_plan, buffer, capacity, required_bytes);
    });
  }

  python_communicator m_owner;
  isthmus_fused_plan m_plan = nullptr;
};

}  // namespace

void bind_fused(nb::module_& module) {
  nb::enum_<isthmus_fused_kind>(module, "FusedKind")
      .value("allgather_gemm", ISTHMUS_FUSED_ALLGATHER_GEMM)
      .value("gemm_reduce_scatter", ISTHMUS_FUSED_GEMM_REDUCE_SCATTER)
      .value("gemm_allreduce", ISTHMUS_FUSED_GEMM_ALLREDUCE);
  nb::enum_<isthmus_fused_mode>(module, "FusedMode")
      .value("model", ISTHMUS_FUSED_BY_MODEL)
      .value("sequential", ISTHMUS_FUSED_SEQUENTIAL)
      .value("pipelined", ISTHMUS_FUSED_PIPELINED);
  nb::enum_<isthmus_fused_view>(module, "FusedView")
      .value("whole", ISTHMUS_FUSED_WHOLE)
      .value("compute_only", ISTHMUS_FUSED_COMPUTE_ONLY)
      .value("communication_only", ISTHMUS_FUSED_COMMUNICATION_ONLY);
  module.attr("FUSED_SHARDED_B") = static_cast<uint32_t>(ISTHMUS_FUSED_SHARDED_B);
  module.attr("FUSED_TRACE") = static_cast<uint32_t>(ISTHMUS_FUSED_TRACE);
  nb::class_<fused_plan>(module, "FusedPlan")
      .def(nb::init<const python_communicator&, isthmus_fused_kind, isthmus_fused_mode, uint64_t, uint64_t,
                    uint64_t, isthmus_datatype, isthmus_datatype, bool, uint32_t, uint64_t, uint64_t, uint64_t,
                    uint32_t>(),
           nb::arg("communicator"), nb::arg("kind"), nb::arg("mode"), nb::arg("m"), nb::arg("n"), nb::arg("k"),
           nb::arg("input"), nb::arg("output"), nb::arg("b_column_major"), nb::arg("flags"), nb::arg("lda"),
           nb::arg("ldb"), nb::arg("ldc"), nb::arg("chunks"))
      .def("run", &fused_plan::run, nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("bias"),
           nb::arg("gathered_a"), nb::arg("alpha"), nb::arg("beta"), nb::arg("view"), nb::arg("stream"))
      .def("info", &fused_plan::info)
      .def("trace", &fused_plan::trace)
      .def("close", &fused_plan::close);
}

}  // namespace isthmus::python
