#include "common/runtime/native_kernels.hpp"

#include <algorithm>
#include <array>
#include <isthmus/sycl/platform.hpp>
#include <mutex>
#include <stdexcept>

#include "device/driver.hpp"
#include "device/kernel_compiler.hpp"

namespace apps {

namespace {

constexpr std::size_t max_arrays = 8;

// Calls the body for the thread's point, if it lies in the grid. Blocks are numbered by rows of work-groups.
constexpr const char* cuda_prelude = R"(
struct kernel_parameters { unsigned long words[24]; };
struct grid_shape { unsigned long rows, columns, group_rows, group_columns, groups; };
template <typename Body, typename... Pointers>
inline void at_point(const kernel_parameters& parameters, const grid_shape& shape, Pointers... pointers) {
  const unsigned long row = blockIdx.x / shape.groups * shape.group_rows + threadIdx.x / shape.group_columns;
  const unsigned long column = blockIdx.x % shape.groups * shape.group_columns + threadIdx.x % shape.group_columns;
  if (row < shape.rows && column < shape.columns) reinterpret_cast<const Body&>(parameters)(row, column, pointers...);
}
)";

struct grid_shape {
  unsigned long rows, columns, group_rows, group_columns, groups;
};

std::string wrap_for_cuda(const kernel_source& source) {
  std::string parameters, arguments;
  for (std::size_t i = 0; i < source.elements.size(); ++i) {
    std::string name("a");
    name += std::to_string(i);
    parameters.append(", ").append(source.elements[i]).append("* ").append(name);
    arguments.append(", ").append(name);
  }
  std::string text = "extern \"C\" __global__ void ";
  text.append(symbol_of(source.name))
      .append("(kernel_parameters parameters, grid_shape shape")
      .append(parameters);
  text.append(") {\n  at_point<").append(source.name).append(">(parameters, shape").append(arguments);
  return text.append(");\n}\n");
}

isthmus::device_driver& driver() {
  std::string reason;
  isthmus::device_driver* const instance = isthmus::device_driver::get(ISTHMUS_PLATFORM_CUDA, reason);
  if (instance == nullptr) throw std::runtime_error("kernels: " + reason);
  return *instance;
}

isthmus::kernel_compiler& compiler() {
  std::string reason;
  auto* const instance = isthmus::kernel_compiler::get(ISTHMUS_PLATFORM_CUDA, driver(), nullptr, reason);
  if (instance == nullptr) throw std::runtime_error("kernels: " + reason);
  return *instance;
}

using native = isthmus::detail::native_interop<isthmus::detail::cuda_backend>;
using views = std::array<std::optional<isthmus::detail::device_accessor>, max_arrays>;

// One kernel launch with its arguments.
struct kernel_launch {
  int device;
  void* kernel;
  kernel_parameters parameters;
  grid_shape shape = {};
  unsigned blocks = 0, threads = 0;
  std::size_t arrays = 0;
  std::array<void*, max_arrays> pointers = {};

  void run(isthmus_stream stream) {
    std::array<void*, max_arrays + 2> arguments{&parameters, &shape};
    for (std::size_t i = 0; i < arrays; ++i) arguments[i + 2] = &pointers[i];
    driver().launch(device, kernel, blocks, threads, std::span(arguments).first(arrays + 2), stream);
  }
};

}  // namespace

struct native_kernels::failure {
  std::mutex mutex;
  std::string text;
};

std::string symbol_of(std::string_view name) {
  std::string symbol(name);
  std::replace(symbol.begin(), symbol.end(), ':', '_');
  return symbol;
}

bool native_kernels::is_supported(const sycl::queue& queue) {
  return queue.get_device().get_backend() == isthmus::detail::cuda_backend;
}

native_kernels::native_kernels(const sycl::queue& queue, const char* device_text,
                               const std::vector<kernel_source>& sources)
    : m_device(native::ordinal(queue.get_device())), m_failed(std::make_shared<failure>()) {
  for (const kernel_source& entry : sources) {
    const std::string symbol = symbol_of(entry.name);
    const std::string text = std::string(device_text) + cuda_prelude + wrap_for_cuda(entry);
    // The text has no CUDA keywords: all functions are device code by default.
    void* const kernel = compiler().kernel(driver(), m_device,
                                           {symbol.c_str(),
                                            text.c_str(),
                                            "none.hpp",
                                            "",
                                            {"__builtin_sqrt=sqrt"},
                                            symbol.c_str(),
                                            {"--device-as-default-execution-space"}});
    m_kernels.emplace(entry.name, kernel);
  }
}

sycl::event native_kernels::submit(sycl::queue& queue, std::string_view name, const grid& grid,
                                   const kernel_parameters& parameters, const events& wait_events,
                                   std::initializer_list<const memory_block*> blocks) const {
  {
    const std::lock_guard lock(m_failed->mutex);
    if (!m_failed->text.empty()) throw std::runtime_error(m_failed->text);
  }
  const auto groups_of = [](unsigned long n, unsigned long group) { return (n + group - 1) / group; };
  kernel_launch launch{m_device, m_kernels.find(name)->second, parameters};
  launch.shape = {grid.rows, grid.columns, grid.group_rows, grid.group_columns,
                  groups_of(grid.columns, grid.group_columns)};
  launch.blocks = static_cast<unsigned>(launch.shape.groups * groups_of(grid.rows, grid.group_rows));
  launch.threads = static_cast<unsigned>(grid.group_rows * grid.group_columns);
  std::array<std::optional<byte_buffer>, max_arrays> buffers;
  for (const memory_block* block : blocks) {
    buffers.at(launch.arrays) = block->buffer;
    launch.pointers.at(launch.arrays++) = block->usm.get();
  }
  const auto make_accessors = [&](sycl::handler& handler) {
    views accessors;
    for (std::size_t i = 0; i < launch.arrays; ++i)
      if (buffers[i]) accessors[i].emplace(*buffers[i], handler);
    return accessors;
  };
  isthmus::detail::order_after(queue, wait_events);
  if (std::any_of(buffers.begin(), buffers.end(), [](const auto& buffer) { return buffer.has_value(); }))
    isthmus::detail::order_after_accesses(queue, make_accessors);
  return queue.submit([&](sycl::handler& handler) {
    handler.depends_on(wait_events);
    const views accessors = make_accessors(handler);
    isthmus::detail::native_enqueue(handler, [launch, accessors, failed = m_failed](auto& interop) {
      kernel_launch local_launch = launch;
      for (std::size_t i = 0; i < local_launch.arrays; ++i)
        if (accessors[i]) local_launch.pointers[i] = native::memory(interop, *accessors[i]);
      try {
        local_launch.run(native::stream(interop));
      } catch (const std::exception& error) {  // no exception may leave a native command
        const std::lock_guard lock(failed->mutex);
        failed->text = error.what();
      }
    });
  });
}

}  // namespace apps
