// Kernels of the stand-in devices: a plain C++ implementation of the reduction kernel's definition that shares
// no code with the kernel.
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "device_memory.hpp"
#include "driver.hpp"
#include "machine.hpp"
#include "reduction.hpp"

namespace standin {
namespace {

using isthmus::copy_engine::reduction_arguments;

struct module {
  int device;  // device of the module's context
  std::string entry, datatype, op;
};

bool is_reachable(const stream& target, const reduction_arguments& reduction, std::size_t bytes) {
  device_memory& memory = device_memory::get();
  const std::size_t rows = reduction.row_bytes * static_cast<std::size_t>(reduction.size - 2) + bytes;
  return memory.direct(target.device, reduction.peer_contributions, rows) &&
         memory.direct(target.device, reduction.own, bytes) &&
         memory.direct(target.device, reduction.result, bytes) && reduction.row_bytes % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(reduction.peer_contributions) % 16 == 0;
}

}  // namespace

int exchange_capture_mode(int* mode) {
  thread_local int current = 0;
  if (*mode < 0 || *mode > 2) return invalid_value;
  std::swap(current, *mode);
  return success;
}

int load_module(void** handle, const void* code) {
  constexpr int invalid_image = 200;
  auto new_module = std::make_unique<module>();
  new_module->device = machine::current();
  const auto* text = static_cast<const char*>(code);
  if (std::memcmp(text,
                  "\x7f"
                  "ELF",
                  4) == 0)
    return *handle = new_module.release(), success;
  std::string magic;
  std::istringstream(text) >> magic >> new_module->entry >> new_module->datatype >> new_module->op;
  if (magic != "standin" || new_module->op.empty()) return invalid_image;
  return *handle = new_module.release(), success;
}

// A module has one kernel and the same handle is used for both.
int find_kernel(void** kernel, void* module_handle, const char* name) {
  constexpr int not_found = 500;
  const auto* new_module = static_cast<module*>(module_handle);
  if (!new_module->entry.empty() && new_module->entry != name) return not_found;
  return *kernel = module_handle, success;
}

int launch_kernel(void* kernel, const grid& blocks, const grid& threads, unsigned shared, void* stream_handle,
                  void** arguments, void** extra) {
  if (!blocks.is_line() || !threads.is_line() || shared != 0 || extra != nullptr) return invalid_value;
  stream& target = machine::get().resolve(stream_handle);
  const module loaded = *static_cast<module*>(kernel);
  reduction_arguments reduction{};
  std::memcpy(&reduction, arguments[0], sizeof reduction);
  if (loaded.entry.empty() || loaded.device != target.device || blocks.x == 0 || threads.x == 0 ||
      threads.x > 1024)
    return invalid_value;
  const std::size_t bytes = reduction.count * element_bytes(loaded.datatype);
  if (reduction.size < 2 || reduction.rank < 0 || reduction.rank >= reduction.size ||
      !is_reachable(target, reduction, bytes))
    return invalid_value;
  target.submit([=] { reduce(reduction, loaded.datatype, loaded.op); });
  return success;
}

}  // namespace standin
