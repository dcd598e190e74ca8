// Kernels of the stand-in devices: what a launch of the reduction kernel must do, from its definition, in plain
// C++ that shares nothing with the kernel.
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
  int device;  // it is of that device's context
  std::string entry, datatype, op;
};

bool reaches(const stream& by, const reduction_arguments& what, std::size_t bytes) {
  device_memory& memory = device_memory::get();
  const std::size_t rows = what.row_bytes * static_cast<std::size_t>(what.size - 2) + bytes;
  return memory.direct(by.device, what.others, rows) && memory.direct(by.device, what.own, bytes) &&
         memory.direct(by.device, what.result, bytes) && what.row_bytes % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(what.others) % 16 == 0;
}

}  // namespace

int exchange_capture_mode(int* mode) {
  thread_local int current = 0;
  if (*mode < 0 || *mode > 2) return invalid_value;
  std::swap(current, *mode);
  return success;
}

int load_module(void** made, const void* code) {
  constexpr int invalid_image = 200;
  auto one = std::make_unique<module>();
  one->device = machine::current();
  const auto* text = static_cast<const char*>(code);
  if (std::memcmp(text,
                  "\x7f"
                  "ELF",
                  4) == 0)
    return *made = one.release(), success;
  std::string mark;
  std::istringstream(text) >> mark >> one->entry >> one->datatype >> one->op;
  if (mark != "standin" || one->op.empty()) return invalid_image;
  return *made = one.release(), success;
}

// A module has one kernel; its handle serves for both.
int find_kernel(void** kernel, void* module_handle, const char* name) {
  constexpr int not_found = 500;
  const auto* one = static_cast<module*>(module_handle);
  if (!one->entry.empty() && one->entry != name) return not_found;
  return *kernel = module_handle, success;
}

int launch_kernel(void* kernel, const grid& blocks, const grid& threads, unsigned shared, void* on,
                  void** arguments, void** extra) {
  if (!blocks.is_line() || !threads.is_line() || shared != 0 || extra != nullptr) return invalid_value;
  stream& ordered = machine::get().resolve(on);
  const module of = *static_cast<module*>(kernel);
  reduction_arguments what{};
  std::memcpy(&what, arguments[0], sizeof what);
  if (of.entry.empty() || of.device != ordered.device || blocks.x == 0 || threads.x == 0 || threads.x > 1024)
    return invalid_value;
  const std::size_t bytes = what.count * element_bytes(of.datatype);
  if (what.size < 2 || what.rank < 0 || what.rank >= what.size || !reaches(ordered, what, bytes))
    return invalid_value;
  ordered.submit([=] { reduce(what, of.datatype, of.op); });
  return success;
}

}  // namespace standin
