#include "launcher.hpp"

namespace apps {

namespace {

namespace exp = sycl::ext::oneapi::experimental;

// Calls the body for the work-item's point, if it lies in the grid.
constexpr const char* prelude = R"(
#include <sycl/sycl.hpp>
struct kernel_parameters { unsigned long words[24]; };
using bytes = sycl::accessor<unsigned char, 1>;
template <typename Body, typename... Pointers>
inline void at_point(const kernel_parameters& parameters, unsigned long rows, unsigned long columns, Pointers... pointers) {
  const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
  const unsigned long row = item.get_global_id(0), column = item.get_global_id(1);
  if (row < rows && column < columns) reinterpret_cast<const Body&>(parameters)(row, column, pointers...);
}
)";

// The kernel that wraps a function object, for pointers or for accessors.
std::string wrap(const kernel_source& source, bool usm) {
  std::string text =
      "extern \"C\" "
      "SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<2>))\nvoid ";
  text.append(symbol_of(source.name) + (usm ? "_usm" : "_buffer"));
  text.append("(kernel_parameters parameters, unsigned long rows, unsigned long columns");
  std::string arguments;
  for (std::size_t i = 0; i < source.elements.size(); ++i) {
    const std::string pointer = source.elements[i] + "*";
    std::string name("a");
    name += std::to_string(i);
    text.append(", ").append(usm ? pointer : "bytes").append(" ").append(name);
    if (usm) {
      arguments.append(", ").append(name);
    } else {
      arguments.append(", reinterpret_cast<").append(pointer).append(">(&").append(name).append("[0])");
    }
  }
  text.append(") {\n  at_point<").append(source.name).append(">(parameters, rows, columns").append(arguments);
  return text.append(");\n}\n");
}

}  // namespace

launcher::launcher(const sycl::queue& queue, const char* device_text,
                   const std::vector<kernel_source>& sources) {
  if (native_kernels::is_supported(queue)) {
    m_native.emplace(queue, device_text, sources);
    return;
  }
  std::string text = std::string(device_text) + prelude;
  for (const kernel_source& entry : sources) text += wrap(entry, true) + wrap(entry, false);
  auto source = exp::create_kernel_bundle_from_source(queue.get_context(), exp::source_language::sycl, text);
  auto bundle = exp::build(source);
  for (const kernel_source& entry : sources)
    m_kernels.emplace(entry.name, variants{bundle.ext_oneapi_get_kernel(symbol_of(entry.name) + "_usm"),
                                           bundle.ext_oneapi_get_kernel(symbol_of(entry.name) + "_buffer")});
}

sycl::event launcher::submit(sycl::queue& queue, std::string_view name, const grid& grid,
                             const kernel_parameters& parameters, const events& wait_events,
                             std::initializer_list<const memory_block*> blocks) const {
  if (grid.empty()) return {};
  if (m_native) return m_native->submit(queue, name, grid, parameters, wait_events, blocks);
  const variants& kernel = m_kernels.find(name)->second;
  return queue.submit([&](sycl::handler& handler) {
    handler.depends_on(wait_events);
    handler.set_args(parameters, grid.rows, grid.columns);
    int index = 3;
    bool usm = true;
    for (const memory_block* block : blocks) {
      if (block->buffer) {
        byte_buffer buffer = *block->buffer;  // accessors take a non-const reference
        usm = false;
        handler.set_arg(index++, sycl::accessor<unsigned char, 1>(buffer, handler));
      } else {
        handler.set_arg(index++, block->usm.get());
      }
    }
    handler.parallel_for(grid.range(), usm ? kernel.usm : kernel.buffer);
  });
}

}  // namespace apps
